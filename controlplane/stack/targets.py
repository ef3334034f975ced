"""The list of pages that Prometheus asks for (its file-based service discovery): those of this stack's processes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.common.files import write_private
from controlplane.stack.folder import StateFolder
from controlplane.stack.services import AGENT, Service


def write(state: StateFolder, services: Iterable[Service]) -> None:
    """Replace the list. Every user may read it: Prometheus has one of its own, and there is no secret. Raises OSError."""
    path = file_of(state)
    write_private(path, json.dumps([_target(each) for each in services if each.metrics], indent=1).encode())
    path.chmod(0o644)


def file_of(state: StateFolder) -> Path:
    return state.path / "metrics.json"


def _target(service: Service) -> dict[str, object]:
    node = service.name.removeprefix(AGENT)
    labels = {"process": "agent", "node": node} if node != service.name else {"process": service.name}
    return {"targets": [urlsplit(service.metrics).netloc], "labels": labels}

"""What the management commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError

from controlplane.control.refused import Refused
from controlplane.fleet.models import Operation


@contextmanager
def explained() -> Iterator[None]:
    """A refusal as one line of the command line per reason."""
    try:
        yield
    except Refused as refusal:
        raise CommandError("refused:\n  " + "\n  ".join(refusal.reasons)) from refusal


def answer(operation: Operation, **more: Any) -> str:
    return json.dumps({"operation": operation.pk, "state": operation.state, **more})

"""What commands read from options about a model: its config.json, and arguments of its engines."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from controlplane.common.files import open_document
from controlplane.control.newmodel import MAX_CONFIG_BYTES


def read_config(path: Path) -> str:
    """The text of a config.json. Raises CommandError."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise CommandError(f"--config: {path} is neither a file nor a pipe; give the model's config.json")
        with open_document(path) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise CommandError(f"--config: {path} has more than {MAX_CONFIG_BYTES} bytes; give the model's config.json")
        return content.decode()
    except OSError as error:
        raise CommandError(f"--config: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"--config: {path} is no text; give the model's config.json") from error


def argument(text: str) -> tuple[str, Any]:
    """`NAME=JSON` as name and value; what is no JSON is a string. Raises CommandError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--arg: {text!r:.80} is not NAME=JSON")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value

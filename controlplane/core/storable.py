"""What PostgreSQL can store: text without NUL and lone surrogates, as logs and command lines may hold. Pure."""

from __future__ import annotations

from typing import Any


def storable_text(text: str) -> str:
    """`text` without NUL, and with a question mark for every lone surrogate."""
    return text.encode(errors="replace").decode().replace("\x00", "")


def storable(value: Any) -> Any:
    """A JSON value whose texts are `storable_text`."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value

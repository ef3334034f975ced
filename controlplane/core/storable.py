"""What PostgreSQL can store: text without NUL and lone surrogates, as logs and command lines may hold. Pure."""

from __future__ import annotations

import unicodedata
from typing import Any

FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols by category, and blank."""


def storable_text(text: str) -> str:
    """`text` without NUL, and with a question mark for every lone surrogate."""
    return text.encode(errors="replace").decode().replace("\x00", "")


def shows_nothing(text: str) -> bool:
    """Whether a reader sees none of it: spaces, and characters without a shape (Unicode's categories C and Z, fillers)."""
    return all(character in FILLERS or unicodedata.category(character)[0] in "CZ" for character in text)


def storable(value: Any) -> Any:
    """A JSON value whose texts are `storable_text`."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value

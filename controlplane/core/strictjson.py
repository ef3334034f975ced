"""A JSON object that somebody sent: of a bounded depth, without what readers or a database would trip over. Pure."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 32
MAX_DIGITS = 40
"""Of a whole number: none that means anything here has more, and conversion takes quadratic time."""


class BadJson(ValueError):
    """What was sent is no such object; the text says what is wrong and where."""


def read_object(raw: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises BadJson."""
    try:
        value = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_whole, object_pairs_hook=_without_repeats
        )
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not UTF-8 (byte {error.start}).") from error
    except RecursionError as error:
        raise BadJson(_too_deep()) from error
    except ValueError as error:
        raise BadJson(f"The body is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise BadJson(f"The body must be a JSON object, not {_kind(value)}.")
    check_values(value)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a name that comes twice readers disagree which value counts."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.80} comes twice in one object")
        found[name] = value
    return found


def check_values(root: Any) -> None:
    """Depth, texts and numbers of a whole body, without recursion. Raises BadJson."""
    left: list[tuple[Any, int]] = [(root, 1)]
    while left:
        value, depth = left.pop()
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise BadJson(_too_deep())
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            left += ((each, depth + 1) for each in inner)
        elif isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise BadJson("The body holds a number that is too large.")


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise BadJson("The body holds a NUL character in a text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadJson("The body holds half of a surrogate pair in a text.") from error


def _too_deep() -> str:
    return f"The body is nested deeper than {MAX_DEPTH} levels."


def _kind(value: Any) -> str:
    names: dict[type, str] = {list: "an array", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")

"""Strict decoding of plain data (JSON, msgpack) into frozen dataclasses, and back.

Outside documents are hostile: a wrong type is refused with the path of the bad value, an unknown field is ignored (so that
a newer peer may add one), a missing field takes its default. Pure: no I/O.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Union

T = TypeVar("T")

MAX_DEPTH = 64
"""Of free-form values inside a document."""


class WrongShape(ValueError):
    """A document does not have the shape its contract promises. `path` names the bad value, e.g. `models[0].mode`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'document'}: {problem}")
        self.path = path
        self.problem = problem


def encode(value: Any) -> Any:
    """A dataclass (or a container of them) as dicts, lists and scalars, ready for JSON or msgpack."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], data: Any, path: str = "") -> T:
    """`data` as an instance of the dataclass `cls`. Raises WrongShape; never coerces a wrong type."""
    if not isinstance(data, Mapping):
        raise WrongShape(path, f"expected an object, got {type(data).__name__}")
    hints, required = _fields(cls)  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        where = f"{path}.{name}" if path else name
        if name in data:
            values[name] = _value(hint, data[name], where)
        elif name in required:
            raise WrongShape(where, "is missing")
    try:
        return cls(**values)
    except WrongShape:
        raise
    except ValueError as error:
        raise WrongShape(path, str(error)) from error


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    required = frozenset(
        f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    return {f.name: hints[f.name] for f in fields}, required


def _value(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(typing.get_args(hint), value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise WrongShape(path, f"expected a list, got {type(value).__name__}")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, each, f"{path}[{index}]") for index, each in enumerate(value))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping):
            raise WrongShape(path, f"expected an object, got {type(value).__name__}")
        key_hint, item_hint = typing.get_args(hint)
        return {_value(key_hint, k, path): _value(item_hint, v, f"{path}.{k}") for k, v in value.items()}
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise WrongShape(path, f"must be one of {', '.join(map(str, typing.get_args(hint)))}, got {value!r:.80}")
        return value
    if hint is Any:
        _bounded(value, path)
        return value
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), value, path)
    return _scalar(hint, value, path)


def _bounded(value: Any, path: str) -> None:
    """Raises WrongShape for free-form data so deep that walking it (`encode`, JSON) would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [each for item in level for each in _items(item)]
        if not level:
            return
    raise WrongShape(path, f"is nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _union(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in hints:
        return None
    problem: WrongShape | None = None
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _value(hint, value, path)
        except WrongShape as error:
            problem = problem or error
    raise problem or WrongShape(path, f"unexpected {type(value).__name__}")


def _scalar(hint: type, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise WrongShape(path, "is too large for a number") from None
    if isinstance(value, bool) and hint is not bool:
        raise WrongShape(path, f"expected {hint.__name__}, got a boolean")
    if not isinstance(value, hint):
        raise WrongShape(path, f"expected {hint.__name__}, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongShape(path, "must be a finite number")
    return value

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
from collections.abc import Callable, Iterable, Mapping
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

    def inside(self, name: str) -> WrongShape:
        """The same, seen from the document in which this one stands under `name` ("[3]" for an item)."""
        dot = "." if name and self.path and not self.path.startswith("[") else ""
        return WrongShape(f"{name}{dot}{self.path}", self.problem)


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
    try:
        found: T = _dataclass(cls)(data)  # type: ignore[arg-type]  # a class is hashable
    except WrongShape as error:
        raise error.inside(path) from error.__cause__
    return found


Reader = Callable[[Any], Any]
"""Plain data -> value. Raises WrongShape with the path from there on."""


@functools.cache
def _dataclass(cls: type) -> Reader:
    """Made once per class: facts of a thousand nodes are read every few seconds."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    readers: list[tuple[str, Reader]] = []
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise WrongShape("", f"expected an object, got {type(data).__name__}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, reader in readers:
                if name in data:
                    values[name] = reader(data[name])
        except WrongShape as error:
            raise error.inside(name) from error.__cause__
        for name in required:
            if name not in values:
                raise WrongShape(name, "is missing")
        try:
            return cls(**values)
        except WrongShape:
            raise
        except ValueError as error:
            raise WrongShape("", str(error)) from error

    readers += [(f.name, _reader(hints[f.name])) for f in fields]
    return read


def _reader(hint: Any) -> Reader:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(typing.get_args(hint))
    if origin is tuple:
        return _tuple(_reader(typing.get_args(hint)[0]))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        key_hint, item_hint = typing.get_args(hint)
        return _mapping(_reader(key_hint), _reader(item_hint))
    if origin is typing.Literal:
        return _literal(typing.get_args(hint))
    if hint is Any:
        return _bounded
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast(type, hint))
    return _float if hint is float else _scalar(hint)


def _tuple(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise WrongShape("", f"expected a list, got {type(value).__name__}")
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each))  # its length is the index of a bad one
        except WrongShape as error:
            raise error.inside(f"[{len(found)}]") from error.__cause__
        return tuple(found)

    return read


def _mapping(key: Reader, item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise WrongShape("", f"expected an object, got {type(value).__name__}")
        found: dict[Any, Any] = {}
        for name, each in value.items():
            known = key(name)
            try:
                found[known] = item(each)
            except WrongShape as error:
                raise error.inside(str(name)) from error.__cause__
        return found

    return read


def _literal(allowed: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise WrongShape("", f"must be one of {', '.join(map(str, allowed))}, got {value!r:.80}")
        return value

    return read


def _union(hints: tuple[Any, ...]) -> Reader:
    optional = type(None) in hints
    readers = [_reader(hint) for hint in hints if hint is not type(None)]

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        problem: WrongShape | None = None
        for reader in readers:
            try:
                return reader(value)
            except WrongShape as error:
                problem = problem or error
        raise problem or WrongShape("", f"unexpected {type(value).__name__}")

    return read


def _float(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise WrongShape("", "is too large for a number") from None
    return _finite(_FLOAT(value))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise WrongShape("", "must be a finite number")
    return value


def _scalar(hint: type) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, bool) and hint is not bool:
            raise WrongShape("", f"expected {hint.__name__}, got a boolean")
        if not isinstance(value, hint):
            raise WrongShape("", f"expected {hint.__name__}, got {type(value).__name__}")
        return value

    return read


_FLOAT = _scalar(float)


def _bounded(value: Any) -> Any:
    """Raises WrongShape for free-form data so deep that walking it (`encode`, JSON) would exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [each for item in level for each in _items(item)]
        if not level:
            return value
    raise WrongShape("", f"is nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()

"""Documents from rows as plain dictionaries. A serializer says what a document has, for OpenAPI and for this: it is read
once, and rows are not put through it again, which would take most of a list's time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any

from django.db.models import Manager
from rest_framework import serializers

Document = type[serializers.Serializer[Any]]
Read = Callable[[Any], Any]


def show(document: Document, row: Any) -> dict[str, Any]:
    """The document of one row. Values are as the row has them: `rendering.encode` writes times as serializers do."""
    found: dict[str, Any] = _reader(document)(row)
    return found


def show_all(document: Document, rows: Iterable[Any]) -> list[dict[str, Any]]:
    read = _reader(document)
    return [read(row) for row in rows]


@cache
def _reader(document: Document) -> Read:
    fields = [(name, _value(field)) for name, field in document().fields.items()]
    return lambda row: {name: value(row) for name, value in fields}


def _value(field: Any) -> Read:
    """How a field is read from a row. Raises TypeError for a field whose value is not the row's own."""
    if isinstance(field, serializers.SerializerMethodField):
        method: Read = getattr(field.parent, field.method_name or "")
        return method
    get = _nullable(field.source) if field.allow_null and "." in field.source else attrgetter(field.source)
    if isinstance(field, serializers.ListSerializer):
        child: Any = type(field.child)
        each = _reader(child)
        return lambda row: [each(inner) for inner in _rows(get(row))]
    if isinstance(field, serializers.BaseSerializer | serializers.DecimalField | serializers.SlugRelatedField):
        raise TypeError(f"{field.source}: a document of a row has no {type(field).__name__}")
    return get


def _nullable(source: str) -> Read:
    """`giver.name` of a row whose giver may be none."""
    first, rest = source.split(".", 1)
    get = attrgetter(rest)
    return lambda row: None if (inner := getattr(row, first)) is None else get(inner)


def _rows(value: Any) -> Iterable[Any]:
    return value.all() if isinstance(value, Manager) else value

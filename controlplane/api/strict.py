"""Serializers that name what they do not know instead of dropping it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.request import Request

MAX_REASON = 500


class Strict(serializers.Serializer[Any]):
    """A body or query whose unknown fields are errors."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = sorted(name for name, field in self.fields.items() if not field.read_only)
            unknown = [name for name in data if name not in known]
            if unknown:
                remedy = f"Unknown field; known: {', '.join(known) or 'none'}."
                raise serializers.ValidationError({str(name)[:80]: [remedy] for name in unknown})
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A number that is one: neither a text, nor true, nor 1.5."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return super().to_internal_value(data)


class Number(serializers.FloatField):
    """A number, not a text that looks like one."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)


class Text(serializers.CharField):
    """A text, not a number that could be printed as one. Kept as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """true or false, not a word for it."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Reason(Text):
    """Why, for the audit."""

    def __init__(self, **options: Any) -> None:
        defaults = {"max_length": MAX_REASON, "allow_blank": True, "default": "", "help_text": "Why; kept in the audit."}
        super().__init__(**{**defaults, **options})


class NoQuery(Strict):
    """For what takes no parameters."""


class ChangeQuery(Strict):
    dry_run = serializers.BooleanField(default=False, help_text="Change nothing; answer what would be done.")


class RemovalQuery(ChangeQuery):
    """A DELETE has no body, so its reason is a parameter."""

    reason = Reason()


class ReasonBody(Strict):
    reason = Reason()


def read_query(request: Request, form: type[Strict]) -> dict[str, Any]:
    """The query's parameters as `form` has them. Raises ValidationError, also for one that comes twice."""
    query: QueryDict = request.query_params
    twice = {name: ["Comes more than once."] for name in query if len(query.getlist(name)) > 1}
    if twice:
        raise serializers.ValidationError(twice)
    checked = form(data=query.dict())
    checked.is_valid(raise_exception=True)
    found: dict[str, Any] = checked.validated_data
    return found


def read_body(request: Request, form: type[Strict]) -> dict[str, Any]:
    """The body as `form` has it. Raises ValidationError and what reading a body raises."""
    checked = form(data=request.data)
    checked.is_valid(raise_exception=True)
    found: dict[str, Any] = checked.validated_data
    return found

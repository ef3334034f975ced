"""Lists in pages: what comes after the last row of a page, in an order of unique keys, so that nothing is shown twice or
left out because rows come and go."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.request import Request

from controlplane.api.strict import Strict

PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
MAX_CURSOR = 400

Row = TypeVar("Row", bound=Model)


class Listed(Strict):
    """What every list takes. `ORDERS` of a subclass: unique fields of the rows, the first one the default order."""

    ORDERS: tuple[str, ...] = ("id",)

    page_size = serializers.IntegerField(
        min_value=1, max_value=MAX_PAGE_SIZE, default=PAGE_SIZE, help_text="Rows of a page."
    )
    cursor = serializers.CharField(max_length=MAX_CURSOR, required=False, help_text="As in `next` of the page before.")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields = super().get_fields()
        fields["order"] = serializers.ChoiceField(
            choices=self.ORDERS, default=self.ORDERS[0], help_text="The order of the rows; - is falling."
        )
        return fields


def page(
    request: Request, rows: QuerySet[Row], asked: Mapping[str, Any], show: Callable[[list[Row]], Any]
) -> dict[str, Any]:
    """`items` of this page and the address of the next one, null on the last."""
    order: str = asked["order"]
    field = order.removeprefix("-")
    rows = rows.order_by(order)
    if asked.get("cursor"):
        side = "lt" if order.startswith("-") else "gt"
        rows = rows.filter(**{f"{field}__{side}": _position(asked["cursor"], order, rows.model, field)})
    size: int = asked["page_size"]
    found = list(rows[: size + 1])
    more, found = len(found) > size, found[:size]
    return {"items": show(found), "next": _next(request, order, getattr(found[-1], field)) if more else None}


def _next(request: Request, order: str, last: Any) -> str:
    query = request.query_params.copy()
    query["cursor"] = base64.urlsafe_b64encode(json.dumps([order, str(last)]).encode()).decode().rstrip("=")
    return f"{request.path}?{query.urlencode()}"


def _position(cursor: str, order: str, model: type[Model], field: str) -> Any:
    """The last value of the page before. Raises ParseError for a cursor that no page gave."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        made_for, last = json.loads(base64.urlsafe_b64decode(padded))
        if made_for != order or not isinstance(last, str) or not last.isprintable():
            raise ValueError("it was made for another order")
        last.encode()
        column = model._meta.get_field(field)
        return column.to_python(last)  # type: ignore[union-attr]
    except (ValueError, TypeError, ValidationError, RecursionError) as error:
        raise ParseError(
            "cursor: it is none of this list's; take it from `next`, or leave it out for the first page."
        ) from error

"""One way to write each value of the document, so that what a person wrote and what the rows say can be compared."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from controlplane.control.actions.planning import plain_part
from controlplane.core.codec import WrongShape

LONGEST_AMOUNT = 40


def canonical(given: dict[str, Any]) -> dict[str, Any]:
    """The document as `present` would write the same. What cannot be read stays as it is: the action that is asked to make
    it so refuses it, and says why."""
    found = dict(given)
    if "planners" in found:
        found["planners"] = {name: item and _planner(item) for name, item in found["planners"].items()}
    if "prices" in found:
        found["prices"] = {_price_name(name): item and _price(item) for name, item in found["prices"].items()}
    return found


def price_name(kind: str, since: datetime) -> str:
    """How a price is called: h100-sxm/2026-12-01T00:00Z"""
    return f"{kind}/{since.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def price_since(name: str) -> tuple[str, datetime | None]:
    """Kind and moment of such a name; None: it says none, or not as ISO 8601 with a time zone."""
    kind, _, since = name.partition("/")
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        return kind, None
    return kind, moment if moment.tzinfo else None


def amount_text(amount: Decimal) -> str:
    """Without zeros at its end: 2.6"""
    return f"{amount.normalize():f}"


def _price_name(name: str) -> str:
    kind, moment = price_since(name)
    try:
        return name if moment is None else price_name(kind, moment)
    except OverflowError:  # the first or last hours of the calendar, in another zone
        return name


def _price(item: dict[str, Any]) -> dict[str, Any]:
    if "per_hour" not in item:
        return item
    text = str(item["per_hour"])
    try:
        amount = Decimal(text) if len(text) <= LONGEST_AMOUNT else None
    except InvalidOperation:
        amount = None
    plain = amount is not None and amount.is_finite() and abs(amount.adjusted()) <= LONGEST_AMOUNT
    return item | {"per_hour": amount_text(amount) if plain and amount is not None else text[:LONGEST_AMOUNT]}


def _planner(item: dict[str, Any]) -> dict[str, Any]:
    try:
        return {part: plain_part(part, value) for part, value in item.items()}
    except WrongShape:
        return item

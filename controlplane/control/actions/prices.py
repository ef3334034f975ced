"""The price book: what GPUs cost and from when on. A change of the past changes past months' costs; it is in the audit."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.core.cost import MOST_PER_HOUR
from controlplane.core.gpus import GPUS
from controlplane.fleet import models

KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
PLACES = Decimal("0.000001")
EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
FARTHEST = timedelta(days=5 * 366)


def set_price(
    actor: Actor,
    kind: str,
    per_hour: str | Decimal,
    *,
    terms: str = models.Terms.HOURLY,
    valid_from: datetime | None = None,
    reason: str = "",
) -> models.Operation:
    """US dollars of one GPU-hour of a kind from a whole hour on (None: the present one), until the next price of the kind.
    One of the same kind and time is replaced."""
    forbid(actor, "set_price")
    _check_kind(kind)
    if terms not in models.Terms.values:
        raise Refused("invalid", f"terms: {terms!r:.40} is none of {', '.join(models.Terms.values)}")
    price = _amount(per_hour)
    since = _whole_hour(valid_from)
    wanted = {"per_hour": str(price), "terms": terms, "valid_from": _told(since)}
    with transaction.atomic():
        row = models.GpuPrice.objects.select_for_update().filter(kind=kind, valid_from=since).first()
        before: dict[str, Any] = _shown(row) if row else {}
        if before == wanted:
            raise Refused("invalid", f"{kind} has this price from {_told(since)} on already")
        models.GpuPrice.objects.update_or_create(kind=kind, valid_from=since, defaults={"per_hour": price, "terms": terms})
        return record_change("set_price", actor, reason, f"price:{kind}", before=before, after=wanted, done=True)


def remove_price(actor: Actor, number: int, *, reason: str = "") -> models.Operation:
    """Take a price out of the book, as if it had never been given: the one before it, else the list price, holds instead."""
    forbid(actor, "remove_price")
    with transaction.atomic():
        row = models.GpuPrice.objects.select_for_update().filter(pk=number).first()
        if row is None:
            raise Refused("not_found", f"there is no price {number}: the price book lists them with their numbers")
        before = _shown(row)
        row.delete()
        return record_change("remove_price", actor, reason, f"price:{row.kind}", before=before, done=True)


def _check_kind(kind: str) -> None:
    if not KIND.fullmatch(kind):
        known = ", ".join(sorted(GPUS))
        raise Refused("invalid", f"kind: {kind!r:.60} is no kind of GPU; as nodes report them: {known}, …")


def _amount(per_hour: str | Decimal) -> Decimal:
    try:
        amount = Decimal(per_hour)
    except InvalidOperation as error:
        raise Refused("invalid", f"per_hour: {per_hour!r:.40} is no number of US dollars, such as 2.60") from error
    if not amount.is_finite() or not 0 <= amount <= Decimal(MOST_PER_HOUR):
        raise Refused("invalid", f"per_hour: a GPU-hour costs 0 to {MOST_PER_HOUR:,.0f} US dollars")
    rounded = amount.quantize(PLACES)
    if rounded != amount:
        raise Refused("invalid", "per_hour: at most six places after the point")
    return rounded


def _whole_hour(moment: datetime | None) -> datetime:
    now = timezone.now()
    if moment is None:
        return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if moment.tzinfo is None:
        raise Refused("invalid", "valid_from: needs a time zone, such as 2026-12-01T00:00Z")
    if not EARLIEST <= moment <= now + FARTHEST:
        raise Refused("invalid", f"valid_from: from {EARLIEST:%Y} on and at most {FARTHEST.days // 366} years ahead")
    since = moment.astimezone(UTC)
    if since.minute or since.second or since.microsecond:
        raise Refused("invalid", "valid_from: prices change at whole hours (UTC); choose one")
    return since


def _shown(row: models.GpuPrice) -> dict[str, Any]:
    return {"per_hour": str(row.per_hour), "terms": row.terms, "valid_from": _told(row.valid_from)}


def _told(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")

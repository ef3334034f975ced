"""The time before and after a change of mode or pools, kept with its operation once it has passed.

A figure that is not known is null, never 0, and `gaps` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from controlplane.core.cost import PriceBook
from controlplane.core.lifecycle import ENDED
from controlplane.core.sketches import Sketch
from controlplane.fleet import models
from controlplane.telemetry.queries.prices import books
from controlplane.telemetry.spans import Span, model_span

SPAN = timedelta(minutes=15)
SETTLED = timedelta(minutes=2)
"""Telemetry of a minute is written a little after it."""
VERBS = ("set_mode", "rebalance", "scale_pool", "move_gpus", "exchange_roles", "promote_canary", "rollback")
AT_ONCE = 20


def measure_finished(now: datetime | None = None) -> int:
    """Measure operations whose time has passed; returns how many. May be run by several at once. Raises database errors."""
    now = now or timezone.now()
    due = models.Operation.objects.filter(
        verb__in=VERBS, state__in=ENDED, measured={}, finished_at__lte=now - SPAN - SETTLED, steps__isnull=False
    ).select_related("model")
    measured = 0
    for row in due.distinct().order_by("pk")[:AT_ONCE]:
        measured += models.Operation.objects.filter(pk=row.pk, measured={}).update(measured=_measure(row))
    return measured


def _measure(row: models.Operation) -> dict[str, Any]:
    if row.model is None or row.finished_at is None:
        return {"gaps": ["its model is gone"]}
    book = books().at(row.created_at.timestamp())
    sides = {"before": (row.created_at - SPAN, row.created_at), "after": (row.finished_at, row.finished_at + SPAN)}
    return {"span_s": SPAN.total_seconds()} | {
        name: side(model_span(row.model.name, since.timestamp(), until.timestamp()), list(_others(row, since, until)), book)
        for name, (since, until) in sides.items()
    }


def _others(row: models.Operation, since: datetime, until: datetime) -> Iterator[str]:
    """Other changes of the model in that time: its figures are not this one's alone."""
    same = models.Operation.objects.filter(model=row.model, verb__in=VERBS, steps__isnull=False).exclude(pk=row.pk)
    meanwhile = same.filter(Q(finished_at=None) | Q(finished_at__gt=since), created_at__lt=until).distinct().order_by("pk")
    yield from (f"operation {each.pk} ({each.verb}) ran in this time too" for each in meanwhile)


def side(span: Span, gaps: list[str], book: PriceBook) -> dict[str, Any]:
    """One side as it is stored. Money is US dollars at the prices of `book`, where nobody gave one at the list price."""
    cost, unpriced = _cost(span, book)
    gaps = [*gaps, *_missing(span), *(f"GPU kind {kind or 'unknown'} has no price" for kind in unpriced)]
    return {
        "ttft_ms": _latency(span.ttft_ms),
        "itl_ms": _latency(span.itl_ms),
        "effective_gpus": _per_minute(span.busy_gpu_s, span),
        "gpus": _per_minute(sum(span.gpu_s.values()), span),
        "cost_per_million_tokens": cost / span.tokens * 1e6 if cost is not None and span.tokens else None,
        "requests": span.requests if span.request_minutes else None,
        "tokens": span.tokens if span.request_minutes else None,
        "minutes": span.minutes,
        "gaps": gaps,
    }


def _latency(sketch: Sketch) -> dict[str, float | int | None]:
    return {"p50": sketch.quantile(0.5), "p99": sketch.quantile(0.99), "samples": round(sketch.count)}


def _per_minute(gpu_s: float | None, span: Span) -> float | None:
    return gpu_s / (span.gpu_minutes * 60) if gpu_s is not None and span.gpu_minutes else None


def _cost(span: Span, book: PriceBook) -> tuple[float | None, list[str]]:
    """(dollars, kinds without a price) of the GPUs that the model held in all of the time, idle minutes too."""
    prices = {kind: book.of(kind) for kind in span.gpu_s}
    unpriced = sorted(kind for kind, price in prices.items() if price is None)
    if unpriced or not span.gpu_minutes:
        return None, unpriced
    dollars = sum(price.per_hour * span.gpu_s[kind] / 3600 for kind, price in prices.items() if price)
    return dollars / span.gpu_minutes * span.minutes, []


def _missing(span: Span) -> Iterator[str]:
    if span.request_minutes < span.minutes:
        yield f"in {span.minutes - span.request_minutes} of {span.minutes} minutes no request ended"
    if span.gpu_minutes < span.minutes:
        yield f"{span.minutes - span.gpu_minutes} of {span.minutes} minutes have no record of GPUs"
    if span.gpu_minutes and span.busy_gpu_s is None:
        yield "the GPUs did not tell how busy they were"
    for what, sketch in (("TTFT", span.ttft_ms), ("ITL", span.itl_ms)):
        if span.request_minutes and not sketch.count:
            yield f"no {what}: no client streamed"

"""Finished requests for the requests page: searched by what the address says, with the stages of each, or to take away."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, get_args, get_type_hints

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.translation import gettext

from controlplane.console.data import BadQuery, answer, data, window_of
from controlplane.console.model_data import engine_labels
from controlplane.core.protocol import RequestRow
from controlplane.core.reasons import Path, Reason
from controlplane.telemetry.queries.exports import figures_table
from controlplane.telemetry.queries.records import BadCursor, Order, RequestFilter, RequestRecord
from controlplane.telemetry.queries.requests import export, search, summary
from controlplane.telemetry.queries.waterfall import stages

PAGE = 50
RANGE = "15m"
MAX_CHARS = 256
MAX_NUMBER = 1e12
ORDERS: tuple[Order, ...] = get_args(Order)
OUTCOMES: tuple[str, ...] = get_args(get_type_hints(RequestRow)["outcome"])
CLOSED = {"path": [*Path], "reason": [*Reason], "outcome": [*OUTCOMES]}
"""What these may be."""
OPEN = {"model": "models", "team": "teams", "arm": "arms"}
TEXTS = {"engine": "engine", "prefill": "prefill_engine", "decode": "decode_engine", "id": "id_prefix", "session": "session"}
NUMBERS = ("min_ttft_ms", "max_ttft_ms", "min_total_ms")
FLAGS = {"slow": "over_slo", "retried": "retried"}


def filter_of(query: QueryDict, now: float) -> RequestFilter:
    """?model= (again for more), team, arm, path, reason, outcome; engine, prefill, decode, session; id (its beginning);
    slow=1 (over its model's SLO), retried=1; min_ttft_ms, max_ttft_ms, min_total_ms; range, from, to. Raises BadQuery,
    BadWindow."""
    window = window_of(query, now, RANGE)
    fields: dict[str, Any] = {}
    for name, choices in CLOSED.items():
        fields[f"{name}s"] = wanted = _texts(query, name)
        if unknown := set(wanted) - set(choices):
            raise BadQuery(gettext("There is no %(name)s %(value)s.") % {"name": name, "value": min(unknown)})
    fields |= {field: _texts(query, name) for name, field in OPEN.items()}
    fields |= {field: next(iter(_texts(query, name)), "") for name, field in TEXTS.items()}
    fields |= {name: _number(query, name) for name in NUMBERS}
    fields |= {field: _flag(query, name) for name, field in FLAGS.items()}
    return RequestFilter(window.since, window.until, **fields)


def _texts(query: QueryDict, name: str) -> list[str]:
    return [text[:MAX_CHARS].replace("\x00", "") for text in query.getlist(name) if text]


def _number(query: QueryDict, name: str) -> float | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_NUMBER:
        raise BadQuery(gettext("%(name)s is a number of milliseconds.") % {"name": name})
    return value


def _flag(query: QueryDict, name: str) -> bool | None:
    text = query.get(name, "")
    if text not in ("", "0", "1"):
        raise BadQuery(gettext("%(name)s is 1, 0 or left out.") % {"name": name})
    return text == "1" if text else None


@data
def requests(request: HttpRequest) -> HttpResponse:
    """?order=newest|slowest&cursor=, and filter_of's: {"rows", "next", "matched", "matched_more", "labels", "summary"}: the
    summary on the first page alone."""
    now = time.time()
    wanted = filter_of(request.GET, now)
    order = next((each for each in ORDERS if each == request.GET.get("order", "newest")), None)
    if order is None:
        raise BadQuery(gettext("The order is newest or slowest."))
    cursor = request.GET.get("cursor", "")

    def page() -> dict[str, Any]:
        try:
            found = search(wanted, order, cursor, PAGE)
        except BadCursor as error:
            raise BadQuery(str(error)) from error
        return {
            "since": wanted.since,
            "until": wanted.until,
            "now": now,
            "rows": [asdict(row) | {"stages": stages(row)} for row in found.rows],
            "next": found.next_cursor,
            "matched": found.matched,
            "matched_more": found.matched_more,
            "labels": engine_labels(_engines(found.rows)),
            "summary": None if cursor else summary(wanted, now),
        }

    return answer(request, "requests", page, lambda: figures_table(export(wanted, order)))


def _engines(rows: list[RequestRecord]) -> set[str]:
    named = {id for row in rows for id in (row.prefill_engine, row.decode_engine)}
    return named | {each.engine for row in rows for each in row.passed}

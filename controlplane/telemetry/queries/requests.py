"""Finished requests: searched, paged by cursor, counted. Reads only.

What a filter says is bound as values; a row of a busy router stands for `weight` requests, and sums are of those.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from psycopg import sql

from controlplane.core.protocol import Passed
from controlplane.telemetry.board import LOST_BY_US
from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.records import (
    MAX_MATCHED,
    MAX_PAGE,
    BadCursor,
    Order,
    RequestFilter,
    RequestPage,
    RequestRecord,
    RequestSummary,
)
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window
from controlplane.telemetry.tables import moment

COLUMNS = (
    *("id", "at", "router", "model", "path", "reason", "status", "outcome", "stream", "prefill_engine", "decode_engine"),
    *("queue_ms", "prefill_ms", "handoff_ms", "ttft_ms", "total_ms", "prompt_tokens", "output_tokens", "cached_tokens"),
    *("kv_bytes", "retries", "resumes", "weight", "session", "arm", "team", "itl_ms"),
)
LISTS = {"models": "model", "paths": "path", "reasons": "reason", "outcomes": "outcome", "arms": "arm", "teams": "team"}
EQUAL = ("prefill_engine", "decode_engine", "router", "session")
OVER_SLO = sql.SQL("(stream AND ttft_ms > slo.slo_ttft_ms)")
FROM = sql.SQL("FROM telemetry_request AS request LEFT JOIN fleet_model AS slo ON slo.name = request.model WHERE ")
SORT: dict[str, sql.Composable] = {
    "newest": sql.SQL("at DESC, request.id DESC"),
    "slowest": sql.SQL("coalesce(ttft_ms, -1) DESC, at DESC, request.id DESC"),
}
AFTER: dict[str, sql.Composable] = {
    "newest": sql.SQL("(at, request.id) < (%(c_at)s, %(c_id)s)"),
    "slowest": sql.SQL("(coalesce(ttft_ms, -1), at, request.id) < (%(c_ttft)s::real, %(c_at)s, %(c_id)s)"),
}


def search(wanted: RequestFilter, order: Order = "newest", cursor: str = "", limit: int = 50) -> RequestPage:
    """A page of the requests that match, `limit` (at most MAX_PAGE) rows. Raises BadCursor, django.db.Error."""
    limit = max(1, min(limit, MAX_PAGE))
    condition, values = _condition(wanted)
    page = condition
    if cursor:
        values |= _cursor_values(cursor, order)
        page = sql.SQL("{} AND {}").format(condition, AFTER[order])
    rows = _rows(page, SORT[order], values, limit + 1)
    matched = _matched(condition, values)
    more = len(rows) > limit
    shown = rows[:limit]
    return RequestPage(
        rows=[_record(row) for row in shown],
        next_cursor=_cursor(order, shown[-1]) if more else "",
        matched=min(matched, MAX_MATCHED),
        matched_more=matched > MAX_MATCHED,
    )


def export(wanted: RequestFilter, order: Order = "newest") -> list[RequestRecord]:
    """The first MAX_MATCHED of the requests that match, at once. Raises django.db.Error."""
    condition, values = _condition(wanted)
    return [_record(row) for row in _rows(condition, SORT[order], values, MAX_MATCHED)]


def find(id: str, since: float = 0.0) -> RequestRecord | None:
    """The newest record of a request's id. `since`: it arrived no earlier. Raises django.db.Error."""
    condition = sql.SQL("request.id = %(id)s AND at >= %(since)s")
    rows = _rows(condition, SORT["newest"], {"id": id, "since": moment(since)}, 1)
    return _record(rows[0]) if rows else None


def summary(wanted: RequestFilter, now: float) -> RequestSummary:
    """How many requests match, by what their records stand for. Raises django.db.Error."""
    condition, values = _condition(wanted)
    query = sql.SQL(
        "SELECT count(*), coalesce(sum(weight), 0)::float8, coalesce(sum(weight) FILTER (WHERE {over}), 0)::float8, "
        "coalesce(sum(weight) FILTER (WHERE outcome = ANY(%(lost)s)), 0)::float8 {source}{condition}"
    ).format(over=OVER_SLO, source=FROM, condition=condition)
    with connection.cursor() as cursor:
        cursor.execute(query, values | {"lost": list(LOST_BY_US)})
        rows, all_, over, lost = cursor.fetchone()
    window = Window(wanted.since, wanted.until, now)
    at = stored().at

    def figure(value: float) -> Figure:
        stale = window.is_stale(at, Level.TEN_SECONDS)
        return Figure(value, figures.REQUESTS, window.span_s, all_, at, stale)

    return RequestSummary(requests=figure(all_), over_slo=figure(over), failed=figure(lost), rows=rows)


def _condition(wanted: RequestFilter) -> tuple[sql.Composable, dict[str, Any]]:
    values: dict[str, Any] = {"since": moment(wanted.since), "until": moment(wanted.until)}
    parts: list[sql.Composable] = [sql.SQL("at >= %(since)s AND at < %(until)s")]

    def add(text: str, name: str, value: Any) -> None:
        if value not in (None, ""):
            parts.append(sql.SQL(text))
            values[name] = value

    for field, column in LISTS.items():
        add(f"request.{column} = ANY(%({field})s)", field, list(getattr(wanted, field)) or None)
    for column in EQUAL:
        add(f"{column} = %({column})s", column, getattr(wanted, column))
    add("(prefill_engine = %(engine)s OR decode_engine = %(engine)s)", "engine", wanted.engine)
    add("starts_with(request.id, %(id_prefix)s)", "id_prefix", wanted.id_prefix)
    add("ttft_ms >= %(min_ttft_ms)s", "min_ttft_ms", wanted.min_ttft_ms)
    add("ttft_ms <= %(max_ttft_ms)s", "max_ttft_ms", wanted.max_ttft_ms)
    add("total_ms >= %(min_total_ms)s", "min_total_ms", wanted.min_total_ms)
    add("prompt_tokens >= %(min_prompt_tokens)s", "min_prompt_tokens", wanted.min_prompt_tokens)
    if wanted.over_slo is not None:
        parts.append(OVER_SLO if wanted.over_slo else sql.SQL("{} IS NOT TRUE").format(OVER_SLO))
    if wanted.retried is not None:
        parts.append(sql.SQL("(retries > 0) = %(retried)s"))
        values["retried"] = wanted.retried
    return sql.SQL(" AND ").join(parts), values


def _rows(condition: sql.Composable, sort: sql.Composable, values: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    query = sql.SQL(
        "SELECT {columns}, request.passed::text, slo.slo_ttft_ms, slo.slo_itl_ms {source}{condition} "
        "ORDER BY {sort} LIMIT {limit}"
    )
    columns = sql.SQL(", ").join(sql.Identifier("request", column) for column in COLUMNS)
    names = (*COLUMNS, "passed", "slo_ttft_ms", "slo_itl_ms")
    with connection.cursor() as cursor:
        cursor.execute(
            query.format(columns=columns, source=FROM, condition=condition, sort=sort, limit=sql.Literal(limit)), values
        )
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _matched(condition: sql.Composable, values: dict[str, Any]) -> int:
    query = sql.SQL("SELECT count(*) FROM (SELECT 1 {source}{condition} LIMIT {most}) AS found")
    with connection.cursor() as cursor:
        cursor.execute(query.format(source=FROM, condition=condition, most=sql.Literal(MAX_MATCHED + 1)), values)
        return int(cursor.fetchone()[0])


def _record(row: dict[str, Any]) -> RequestRecord:
    gaps = sorted(row.pop("itl_ms"))
    passed = json.loads(row.pop("passed"))
    return RequestRecord(
        **{**row, "at": row["at"].timestamp()},
        itl_p50_ms=_quantile(gaps, 0.5),
        itl_p99_ms=_quantile(gaps, 0.99),
        passed=[Passed(*each) for each in passed],
    )


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that at least q of all do not exceed."""
    return ordered[max(-int(-q * len(ordered) // 1) - 1, 0)] if ordered else None


def _cursor(order: Order, row: dict[str, Any]) -> str:
    ttft = -1.0 if row["ttft_ms"] is None else row["ttft_ms"]
    at = row["at"].isoformat() if isinstance(row["at"], datetime) else row["at"]
    return base64.urlsafe_b64encode(json.dumps([order, ttft, at, row["id"]]).encode()).decode()


def _cursor_values(cursor: str, order: Order) -> dict[str, Any]:
    try:
        found, ttft, at, id = json.loads(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
        place, ttft, id = datetime.fromisoformat(at), float(ttft), str(id)
    except (ValueError, TypeError, binascii.Error) as error:
        raise BadCursor("the place in the list is not one that a page gave out: begin at its first page") from error
    if found != order or place.tzinfo is None or "\x00" in id:
        raise BadCursor("the place in the list is that of another order: begin at its first page")
    return {"c_ttft": ttft, "c_at": place, "c_id": id}

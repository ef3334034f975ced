"""What a month cost and what API keys used in it, from the hours of telemetry.cost_hours and the price book. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connection

from controlplane.core.cost import PriceBook, Tokens, Use
from controlplane.core.statement import HOUR_S, Segment, Statement, statement
from controlplane.fleet.models import FormerSecret, InferenceKey
from controlplane.telemetry.cost_hours import POSITION
from controlplane.telemetry.queries import exports, prices
from controlplane.telemetry.queries.exports import Cell, Table
from controlplane.telemetry.queries.months import Month
from controlplane.telemetry.tables import moment

USES = """
SELECT width_bucket(extract(epoch FROM at)::float8, %(starts)s::float8[]) - 1, model, role, kind, sum(gpu_seconds),
       sum(busy_seconds), sum(idle_seconds), sum(stranded_seconds), sum(unknown_seconds)
FROM telemetry_cost_hour WHERE at >= %(since)s AND at < %(until)s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
TOKENS = """
SELECT width_bucket(extract(epoch FROM at)::float8, %(starts)s::float8[]) - 1, model, team, api_key, sum(requests)::bigint,
       sum(estimated)::bigint, sum(prompt_tokens)::bigint, sum(output_tokens)::bigint, sum(cached_tokens)::bigint
FROM telemetry_usage_hour WHERE at >= %(since)s AND at < %(until)s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
RECORDED = """
SELECT extract(epoch FROM at)::float8, max(minutes) FROM telemetry_cost_hour
WHERE at >= %(since)s AND at < %(until)s GROUP BY at ORDER BY at
"""


@dataclass(frozen=True)
class Gap:
    """Hours of which nothing is known of any GPU: their cost is not known and in no sum."""

    since: float
    until: float


@dataclass(frozen=True)
class Usage:
    """What a key's requests for a model used. `estimated`: requests of those that records of others stand for, as a busy
    router of an earlier version told only those; 0: all was counted. `cents`: what they cost; None: not known."""

    team: str
    key: str
    model: str
    requests: int
    estimated: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    cents: int | None


@dataclass(frozen=True)
class Costs:
    """`until`: up to where hours are made (the month's end once it is over); None: none is. `recorded`: the share of the
    time from `since` to `until` in which any GPU told anything."""

    month: str
    zone: str
    since: float
    until: float | None
    ends: float
    recorded: float | None
    gaps: tuple[Gap, ...]
    statement: Statement
    usage: tuple[Usage, ...]


def monthly(month: Month) -> Costs:
    """Raises django.db.Error."""
    books = prices.books()
    pieces = month.cuts(books.starts)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM at)::float8 FROM telemetry_position WHERE stream = %s", [POSITION])
        made = cursor.fetchone()
        until = None if made is None or made[0] <= month.since else min(float(month.until), made[0])
        between: dict[str, Any] = {
            "starts": [float(start) for _, start in pieces],
            "since": moment(month.since),
            "until": moment(month.since if until is None else until),
        }
        cursor.execute(USES, between)
        uses = cursor.fetchall()
        cursor.execute(TOKENS, between)
        tokens = cursor.fetchall()
        cursor.execute(RECORDED, between)
        minutes = dict(cursor.fetchall())
    names = _key_names({row[3] for row in tokens})
    found = statement(_segments(pieces, [books.at(start) for _, start in pieces], uses, tokens, names))
    expected = 0 if until is None else (until - month.since) / 60
    return Costs(
        month=month.name,
        zone=month.zone,
        since=float(month.since),
        until=until,
        ends=float(month.until),
        recorded=min(sum(minutes.values()) / expected, 1.0) if expected else None,
        gaps=tuple(_gaps(minutes, month.since, until)),
        statement=found,
        usage=tuple(_usage(found, tokens, names)),
    )


def _key_names(digests: set[str]) -> dict[str, str]:
    """Of the beginnings of keys' digests that records have; one whose row is gone keeps its digits."""
    if not digests - {""}:
        return {}
    present = InferenceKey.objects.values_list("sha256", "name")
    former = FormerSecret.objects.values_list("sha256", "key__name")
    return {sha256[:16]: name for rows in (former, present) for sha256, name in rows}


def _segments(
    pieces: list[tuple[str, int]], books: list[PriceBook], uses: list[Any], tokens: list[Any], names: dict[str, str]
) -> Iterator[Segment]:
    of_uses: defaultdict[int, list[Use]] = defaultdict(list)
    for place, model, role, kind, *seconds in uses:
        held, busy, idle, stranded, unknown = (float(each) / HOUR_S for each in seconds)
        of_uses[place].append(Use(model, role, kind, held, busy, idle, stranded, unknown))
    of_tokens: defaultdict[int, list[Tokens]] = defaultdict(list)
    for place, model, team, key, requests, _, prompt, output, cached in tokens:
        of_tokens[place].append(Tokens(model, team, prompt, output, cached, requests, names.get(key, key)))
    for place, ((day, _), book) in enumerate(zip(pieces, books, strict=True)):
        if of_uses[place] or of_tokens[place]:
            yield Segment(day, book, tuple(of_uses[place]), tuple(of_tokens[place]))


def _gaps(minutes: dict[float, int], since: int, until: float | None) -> Iterator[Gap]:
    begun: float | None = None
    at = float(since)
    while until is not None and at < until:
        if at in minutes and begun is not None:
            yield Gap(begun, at)
            begun = None
        elif at not in minutes and begun is None:
            begun = at
        at += HOUR_S
    if begun is not None and until is not None:
        yield Gap(begun, until)


def _usage(found: Statement, tokens: list[Any], names: dict[str, str]) -> Iterator[Usage]:
    estimated: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for _, model, team, key, _, of_others, *_ in tokens:
        estimated[team, names.get(key, key), model] += of_others
    lines = defaultdict(list)
    for line in found.lines:
        if line.served:
            lines[line.team, line.key, line.model].append(line)
    for (team, key, model), same in sorted(lines.items()):
        cents = [line.cents for line in same]
        yield Usage(
            team=team,
            key=key,
            model=model,
            requests=sum(line.requests for line in same),
            estimated=estimated[team, key, model],
            prompt_tokens=sum(line.prompt_tokens for line in same),
            output_tokens=sum(line.output_tokens for line in same),
            cached_tokens=sum(line.cached_tokens for line in same),
            cents=None if None in cents else sum(each for each in cents if each is not None),
        )


# --- Tables for finance


def table(found: Costs, by: str) -> Table:
    """One of TABLES. Money is US dollars with two places; what is not known is empty. Raises KeyError."""
    return TABLES[by](found)


def money(cents: int | None) -> str | None:
    return None if cents is None else f"{cents // 100}.{cents % 100:02d}"


def _lines_table(found: Costs) -> Table:
    columns = [
        "day",
        "model",
        "team",
        "key",
        "charged_to",
        "requests",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "cost",
    ]
    rows: list[list[Cell]] = [
        [
            *(line.day, line.model, line.team, line.key),
            "traffic" if line.served else "no_traffic" if line.model else "no_pool",
            *(line.requests, line.prompt_tokens, line.output_tokens, line.cached_tokens, money(line.cents)),
        ]
        for line in found.statement.lines
    ]
    return Table(columns, ["", "", "", "", "", "1", "1", "1", "1", "US$"], rows)


def _models_table(found: Costs) -> Table:
    rows: list[list[Cell]] = [
        [
            each.model,
            *map(money, (each.cents, each.prefill_cents, each.decode_cents, each.mixed_cents)),
            *map(money, (each.idle_cents, each.stranded_cents)),
            *(each.requests, each.prompt_tokens, each.output_tokens, each.cached_tokens),
            *(each.per_million_input, each.per_million_output, each.per_million_tokens),
            "; ".join(each.gaps),
        ]
        for each in found.statement.models
    ]
    if found.statement.unassigned_cents:
        rows.append(["", money(found.statement.unassigned_cents), *[None] * 12, "in no pool"])
    columns = ["model", "cost", "prefill", "decode", "mixed", "of_it_idle", "of_it_stranded", "requests", "prompt_tokens"]
    columns += [
        "output_tokens",
        "cached_tokens",
        "input_per_million",
        "output_per_million",
        "all_per_million_output",
        "not_known",
    ]
    return Table(columns, ["", *["US$"] * 6, "1", "1", "1", "1", "US$", "US$", "US$", ""], rows)


def _pools_table(found: Costs) -> Table:
    states = ("busy", "underused", "idle", "stranded", "unknown")
    rows: list[list[Cell]] = [
        [
            *(pool.model, pool.role, pool.kind, pool.gpu_hours),
            *(getattr(pool, f"{state}_hours") for state in states),
            money(pool.cents),
            *(money(getattr(pool, f"{state}_cents")) for state in states),
        ]
        for pool in found.statement.pools
    ]
    columns = ["model", "role", "gpu_kind", "held", *(f"{state}_held" for state in states)]
    columns += ["cost", *(f"{state}_cost" for state in states)]
    return Table(columns, ["", "", "", *["GPU h"] * 6, *["US$"] * 6], rows)


def _usage_table(found: Costs) -> Table:
    made = exports.figures_table(found.usage)
    if not made.columns:
        return made
    at = made.columns.index("cents")
    for row, each in zip(made.rows, found.usage, strict=True):
        row[at] = money(each.cents)
    made.columns[at], made.units[at] = "cost", "US$"
    return made


TABLES = {"lines": _lines_table, "models": _models_table, "pools": _pools_table, "usage": _usage_table}

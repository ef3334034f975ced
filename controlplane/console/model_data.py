"""What the charts and tables of a model's page are drawn from, and the same to take away. Each `what` is one question to
telemetry, so that a panel that fails takes no other one with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext

from controlplane.console.data import BadQuery, answer, data, window_of
from controlplane.fleet import models
from controlplane.telemetry.queries.engines import engine_figures
from controlplane.telemetry.queries.exports import Table, all_series, figures_table, flat_series, heat_table, series_table
from controlplane.telemetry.queries.figures import LatencySeries, Series
from controlplane.telemetry.queries.handoffs import handoff_split
from controlplane.telemetry.queries.markers import operation_markers
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.pairs import pair_figures
from controlplane.telemetry.queries.pools import pool_figures, pool_series
from controlplane.telemetry.queries.records import RequestFilter
from controlplane.telemetry.queries.requests import summary
from controlplane.telemetry.queries.results import ModelWaste, PoolSeries
from controlplane.telemetry.queries.transfers import transfer_figures, transfer_series
from controlplane.telemetry.queries.waste import thirty_days, today
from controlplane.telemetry.queries.windows import Window

SLO_SPAN_S = 3600.0
MAX_MIDNIGHT_AGE_S = 2 * 86_400


Ask = Callable[..., Any]


@dataclass(frozen=True)
class Source:
    """`ask(model, window, query)` answers (of other pages: what theirs is of, instead of a model's name); `page` makes
    its document for the page, `table` the table to take away."""

    ask: Ask
    page: Callable[[Any], Any]
    table: Callable[[Any], Table]


def itself(found: Any) -> Any:
    return found


def lines(named: Mapping[str, Series | LatencySeries]) -> dict[str, Any]:
    """Series for a chart: where each begins, how wide its cells are, and its values."""
    shown = {
        name: {"start": each.starts[0], "step_s": each.step_s, "unit": each.unit, "values": each.values}
        for name, each in flat_series(named).items()
    }
    return {"lines": shown}


def _pools(pools: Mapping[str, PoolSeries]) -> dict[str, Series | LatencySeries]:
    return {f"{pool.role}_{name}": each for pool in pools.values() for name, each in all_series(pool).items()}


def _transfer_page(found: Any) -> dict[str, Any]:
    heat = found.heat
    return lines(all_series(found)) | {
        "heat": {"start": heat.starts[0], "step_s": heat.step_s, "edges_ms": heat.edges_ms, "counts": heat.counts}
    }


def _pair_page(found: list[Any]) -> dict[str, Any]:
    return {"pairs": found, "labels": engine_labels({each for pair in found for each in (pair.prefill, pair.decode)})}


def engine_labels(ids: Iterable[str]) -> dict[str, list[str]]:
    """[label, role] of engines that are or were, by id."""
    rows = models.Engine.objects.filter(id__in=set(ids)).only("id", "role", "number")
    return {row.id: [row.label, row.role] for row in rows}


def _within_slo(model: str, window: Window, _query: Mapping[str, str]) -> Any:
    return summary(RequestFilter(window.now - SLO_SPAN_S, window.now, models=[model]), window.now)


def _waste(model: str, window: Window, query: Mapping[str, str]) -> dict[str, ModelWaste | None]:
    """Since midnight of the viewer (`?midnight=`, Unix seconds) and over 30 days."""
    spans = {"today": today(window.now, midnight(query, window.now)), "30 d": thirty_days(window.now)}
    return {name: next((each for each in found.models if each.model == model), None) for name, found in spans.items()}


def midnight(query: Mapping[str, str], now: float) -> float:
    """When the viewer's day began, Unix seconds: `?midnight=`, else that of UTC. Raises BadQuery."""
    text = query.get("midnight", "")
    if not text:
        return now // 86_400 * 86_400
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 0 <= now - int(text) < MAX_MIDNIGHT_AGE_S):
        raise BadQuery(gettext("midnight is the Unix time at which the viewer's day began."))
    return float(text)


def _waste_table(found: dict[str, ModelWaste | None]) -> Table:
    spans = {name: [waste.total, *waste.pools] for name, waste in found.items() if waste}
    tables = {name: figures_table(pools) for name, pools in spans.items()}
    rows = [[name, *row] for name, table in tables.items() for row in table.rows]
    some = next(iter(tables.values()), Table([], [], []))
    return Table(["span", *some.columns], ["", *some.units], rows)


def _one(found: Any) -> Table:
    return figures_table([found])


def _series(of: Callable[[Any], dict[str, Series | LatencySeries]], ask: Ask) -> Source:
    return Source(ask, lambda found: lines(of(found)), lambda found: series_table(of(found)))


SOURCES: Mapping[str, Source] = {
    "series": _series(all_series, lambda model, window, _: model_series(model, window)),
    "pool_series": _series(_pools, lambda model, window, _: pool_series(model, window)),
    "transfer_series": replace(
        _series(all_series, lambda model, window, _: transfer_series(model, window)), page=_transfer_page
    ),
    "transfer_heat": Source(lambda model, window, _: transfer_series(model, window).heat, itself, heat_table),
    "figures": Source(lambda model, window, _: model_figures(model, window), itself, _one),
    "pools": Source(lambda model, window, _: pool_figures(window, model), itself, figures_table),
    "transfers": Source(lambda model, window, _: transfer_figures(window, model), itself, figures_table),
    "engines": Source(lambda model, window, _: engine_figures(window, model), itself, figures_table),
    "pairs": Source(lambda model, window, _: pair_figures(model, window), _pair_page, figures_table),
    "handoff": Source(lambda model, window, _: handoff_split(model, window), itself, _one),
    "slo": Source(_within_slo, itself, _one),
    "waste": Source(_waste, itself, _waste_table),
    "markers": Source(lambda model, window, _: operation_markers(window, model), itself, figures_table),
}
"""By the end of the address: /data/models/<name>/<what>."""


@data
def model(request: HttpRequest, name: str, what: str) -> HttpResponse:
    """?range= or ?from=&to= (data.window_of). `step_s`: the width of its charts' cells. 404 when there is no such model."""
    if not models.Model.objects.filter(name=name).exists():
        raise Http404
    source = SOURCES[what]
    window = window_of(request.GET, time.time())
    found = source.ask(name, window, request.GET)
    of = {"since": window.since, "until": window.until, "now": window.now, "step_s": window.step_s}
    return answer(request, f"{name}-{what}", lambda: of | {"found": source.page(found)}, lambda: source.table(found))

"""What the engine page's figures, charts and tables are made of, and the same to take away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse

from controlplane.console.data import answer, data, window_of
from controlplane.console.engine_facts import starts
from controlplane.console.model_data import Source, engine_labels, itself, lines
from controlplane.fleet import models
from controlplane.telemetry.queries.engines import engine_figures, engine_series
from controlplane.telemetry.queries.exports import all_series, figures_table, series_table
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.gpus import gpu_figures
from controlplane.telemetry.queries.kv_results import PairFigures
from controlplane.telemetry.queries.pairs import pair_figures
from controlplane.telemetry.queries.windows import Window


@dataclass(frozen=True)
class Peer:
    """An engine that this one hands KV to (`to`) or gets it from (`from`): what the probe of the pair saw, and what requests
    saw in the window (None: no request took this way)."""

    peer: str
    direction: str
    state: str
    """asked, verified or failed; "": not probed."""
    probe_ms: float | None
    probe_reason: str
    handoffs: Figure | None
    failed: Figure | None
    bytes_per_s: Figure | None
    p50: Figure | None
    p99: Figure | None


def peers(engine: models.Engine, window: Window) -> list[Peer]:
    """By peer. Raises django.db.Error."""
    probed = {(pair.prefill_id, pair.decode_id): pair for pair in _pairs(engine)}
    seen = {
        (each.prefill, each.decode): each
        for each in pair_figures(engine.model.name, window)
        if engine.id in (each.prefill, each.decode)
    }
    return [_peer(engine.id, key, probed.get(key), seen.get(key)) for key in sorted(probed.keys() | seen.keys())]


def _pairs(engine: models.Engine) -> Any:
    """Pairs of the present starts: of earlier ones nothing holds any more."""
    own = Q(prefill=engine, prefill_incarnation=engine.incarnation) | Q(decode=engine, decode_incarnation=engine.incarnation)
    return models.Pair.objects.filter(own)


def _peer(own: str, key: tuple[str, str], pair: models.Pair | None, seen: PairFigures | None) -> Peer:
    prefill, decode = key
    return Peer(
        peer=decode if prefill == own else prefill,
        direction="to" if prefill == own else "from",
        state=pair.state if pair else "",
        probe_ms=pair.handoff_ms if pair else None,
        probe_reason=pair.reason if pair else "",
        handoffs=seen.handoffs if seen else None,
        failed=seen.failed if seen else None,
        bytes_per_s=seen.bytes_per_s if seen else None,
        p50=seen.handoff.p50 if seen else None,
        p99=seen.handoff.p99 if seen else None,
    )


def _peers_page(found: list[Peer]) -> dict[str, Any]:
    return {"peers": found, "labels": engine_labels(peer.peer for peer in found)}


def _gpus(engine: models.Engine, window: Window, _query: Mapping[str, str]) -> Any:
    uuids = models.Reservation.objects.filter(rank__engine=engine).values_list("gpu_id", flat=True)
    return gpu_figures(window, list(uuids))


SOURCES: Mapping[str, Source] = {
    "figures": Source(lambda engine, window, _: engine_figures(window, engine=engine.id), itself, figures_table),
    "series": Source(
        lambda engine, window, _: engine_series(engine.id, window),
        lambda found: lines(all_series(found)),
        lambda found: series_table(all_series(found)),
    ),
    "gpus": Source(_gpus, itself, figures_table),
    "peers": Source(lambda engine, window, _: peers(engine, window), _peers_page, figures_table),
    "starts": Source(lambda engine, *_: starts(engine), itself, figures_table),
}
"""By the end of the address: /data/engines/<id>/<what>."""


@data
def engine(request: HttpRequest, engine_id: str, what: str) -> HttpResponse:
    """?range= or ?from=&to= (data.window_of). 404 when there is no such engine."""
    row = models.Engine.objects.select_related("model").filter(id=engine_id.replace("\x00", "")).first()
    if row is None:
        raise Http404
    source = SOURCES[what]
    window = window_of(request.GET, time.time())
    found = source.ask(row, window, request.GET)
    return answer(request, f"{row.id}-{what}", lambda: {"found": source.page(found)}, lambda: source.table(found))

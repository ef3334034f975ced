"""The router's own /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.router.counters import Page

if TYPE_CHECKING:
    from controlplane.router.app import Router


def render(router: Router) -> bytes:
    page, counters = Page(), router.counters
    page.family("twinpool_router_in_flight", "gauge", "Requests being served.", [({}, counters.in_flight)])
    page.family("twinpool_router_connections", "gauge", "Open client connections.", [({}, len(router.clients))])
    page.family(
        "twinpool_router_requests_total",
        "counter",
        "Finished requests.",
        [
            ({"model": model, "path": path, "reason": reason, "outcome": outcome}, count)
            for (model, path, reason, outcome), count in counters.by_outcome.items()
        ],
    )
    page.family("twinpool_router_retried_total", "counter", "Requests that needed another engine.", [({}, counters.retried)])
    page.family("twinpool_router_set_aside_total", "counter", "Times an engine was set aside.", [({}, counters.set_aside)])
    page.histogram("twinpool_router_ttft_seconds", "Arrival to first byte of good answers.", "model", counters.ttft)
    loads = router.loads()
    page.family(
        "twinpool_router_engine_in_flight", "gauge", "Open legs.", [({"engine": e.engine}, e.in_flight) for e in loads]
    )
    page.family(
        "twinpool_router_engine_handoffs",
        "gauge",
        "KV waiting to be pulled.",
        [({"engine": e.engine}, e.handoffs) for e in loads],
    )
    aside = set(router.set_aside())
    page.family(
        "twinpool_router_engine_usable",
        "gauge",
        "0 while set aside.",
        [({"engine": e.engine}, float(e.engine not in aside)) for e in loads],
    )
    page.family(
        "twinpool_router_handoffs_total",
        "counter",
        "Handoffs by how they ended.",
        [({"how": how}, n) for how, n in router.ledger.totals.items()],
    )
    page.family(
        "twinpool_router_kv_checks_total",
        "counter",
        "Late answers that were held.",
        [({"result": r}, n) for r, n in counters.kv_checks.items()],
    )
    page.family("twinpool_router_telemetry_dropped_total", "counter", "Rows nobody took.", [({}, router.telemetry.dropped)])
    if router.precise is not None:
        page.family(
            "twinpool_router_indexer_total",
            "counter",
            "Questions to the indexer by how they ended, and what it foretold by whether the engine found it so.",
            [({"result": result}, n) for result, n in router.precise.counts.items()],
        )
    table = router.directory.table
    if table is not None:
        page.family(
            "twinpool_router_table_generation",
            "gauge",
            "The applied routing table.",
            [({"epoch": str(table.epoch)}, table.generation)],
        )
    return page.text()

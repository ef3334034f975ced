"""The router's own /metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from controlplane.router import compiled
from controlplane.router.counters import Counters, Page

if TYPE_CHECKING:
    from controlplane.router.app import Router


def render(router: Router) -> bytes:
    page, counters = Page(), router.counters
    page.family("twinpool_router_processes", "gauge", "By how their code runs.", [({"code": compiled.code()}, 1)])
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
    page.family(
        "twinpool_router_resumed_total",
        "counter",
        "Times another engine carried a broken stream on.",
        [({}, counters.resumed)],
    )
    page.family("twinpool_router_set_aside_total", "counter", "Times an engine was set aside.", [({}, counters.set_aside)])
    page.histogram("twinpool_router_ttft_seconds", "Arrival to first byte of good answers.", "model", counters.ttft)
    page.histogram(
        "twinpool_router_token_seconds", "Mean time between output tokens of good streams.", "model", counters.pace
    )
    _engines(page, counters)
    _open(page, router)
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
    page.family(
        "twinpool_router_engine_era",
        "gauge",
        "How often the engine's prefix cache had to be left because wrong KV may be in it.",
        [({"engine": era.engine}, era.number) for era in router.directory.eras_of_table()],
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


def _open(page: Page, router: Router) -> None:
    """What is open on each engine, on all its starts together: one may have left with legs open and be back as another."""
    flights, waiting = Counter[str](), dict[tuple[str, int], int]()
    for load in router.loads():
        flights[load.engine] += load.in_flight
        waiting[load.engine, load.incarnation] = load.handoffs
    handoffs = Counter[str]()
    for (engine, _), count in waiting.items():
        handoffs[engine] += count
    aside = set(router.set_aside())
    for name, text, values in (
        ("in_flight", "Open legs.", flights),
        ("handoffs", "KV waiting to be pulled.", handoffs),
        ("usable", "0 while set aside.", {engine: int(engine not in aside) for engine in flights}),
    ):
        samples = [({"engine": engine}, float(value)) for engine, value in values.items()]
        page.family(f"twinpool_router_engine_{name}", "gauge", text, samples)


def _engines(page: Page, counters: Counters) -> None:
    """Per engine, and per pair of prefill and decode engine."""
    engines = [({"engine": id}, served) for id, served in counters.engines.items()]
    page.family(
        "twinpool_router_engine_answers_total",
        "counter",
        "Requests whose answer this engine gave or began.",
        [(labels, served.requests) for labels, served in engines],
    )
    page.family(
        "twinpool_router_engine_prompt_tokens_total",
        "counter",
        "Prompt tokens of those requests.",
        [(labels, served.prompt_tokens) for labels, served in engines],
    )
    page.family(
        "twinpool_router_engine_output_tokens_total",
        "counter",
        "Output tokens of those requests.",
        [(labels, served.output_tokens) for labels, served in engines],
    )
    page.family(
        "twinpool_router_engine_faults_total",
        "counter",
        "Legs that failed on this engine, by how.",
        [({"engine": id, "fault": kind}, count) for (id, kind), count in counters.faults.items()],
    )
    pairs = [({"prefill": prefill, "decode": decode}, handed) for (prefill, decode), handed in counters.pairs.items()]
    page.family(
        "twinpool_router_pair_handoffs_total",
        "counter",
        "Requests that went from this prefill engine to this decode engine.",
        [(labels, handed.handoffs) for labels, handed in pairs],
    )
    page.family(
        "twinpool_router_pair_kv_bytes_total",
        "counter",
        "KV cache of their prompts, in bytes: what was pulled, but for what the decode engine held already.",
        [(labels, handed.kv_bytes) for labels, handed in pairs],
    )
    page.family(
        "twinpool_router_pair_handoff_seconds_total",
        "counter",
        "From the end of prefill to the first byte, added up.",
        [(labels, handed.seconds) for labels, handed in pairs],
    )

"""Series of an agent for Prometheus: its engines, its GPUs, and how well it watches them. Read by a thread of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import Metric

from controlplane.common.metrics import by, counter, gauge, one
from controlplane.core.lifecycle import ENGINE
from controlplane.core.protocol import GpuFact
from workers.counts import Counts, Sampled
from workers.engine import Engine

FRESH_S = 5.0
"""Older samples of GPUs are not shown."""


def agent_series(
    now: float, engines: Sequence[Engine], facts: Sequence[GpuFact], counts: Counts, sampled: Sampled
) -> Iterator[Metric]:
    """`facts`: the node's GPUs."""
    states = Counter(dict.fromkeys(ENGINE.keys() - {"planned"}, 0))
    states.update(engine.record.state for engine in engines if engine.record.spec)
    yield gauge("twinpool_agent_engines", "Engines of this node by state.", by(states), ("state",))
    yield counter(
        "twinpool_agent_engine_events_total",
        "Starts; readies; failures (did not start, or ended by itself); stops that were ordered.",
        by(counts.events),
        ("event",),
    )
    yield counter("twinpool_agent_commands_total", "Signed commands.", by(counts.commands), ("result",))
    yield counter("twinpool_agent_scrapes_total", "Scrapes of engines.", by(counts.scrapes), ("result",))
    yield from counts.scrape_seconds.collect()
    yield from sampled.seconds.collect()
    yield counter("twinpool_agent_records_total", "Telemetry records.", by(sampled.records), ("result",))
    yield counter("twinpool_agent_gpu_samples_total", "Samples of GPUs.", by(sampled.samples), ("result",))
    yield from _engines(now, engines)
    yield from _gpus(facts, sampled if now - sampled.at <= FRESH_S else Sampled())


def _engines(now: float, engines: Sequence[Engine]) -> Iterator[Metric]:
    """Of engines whose newest scrape is fresh."""
    pages = [(engine.record, page) for engine in engines if engine.record.live and (page := engine.vitals.fresh(now))]
    labels = ("engine", "model")
    told = [((record.id, record.spec.model), page) for record, page in pages if record.spec and not record.rank]
    for name, text, values in (
        ("requests_running", "Requests that it works on.", [(key, page.running) for key, page in told]),
        ("requests_waiting", "Requests that wait in it.", [(key, page.waiting) for key, page in told]),
        ("kv_usage_ratio", "Share of its KV blocks in use.", [(key, page.kv_usage) for key, page in told]),
    ):
        yield gauge(f"twinpool_engine_{name}", text, values, labels)


def _gpus(facts: Sequence[GpuFact], sampled: Sampled) -> Iterator[Metric]:
    known = {gpu.uuid: gpu for gpu in facts}
    rows = [((row.uuid, str(known[row.uuid].index), known[row.uuid].kind, row.engine), row) for row in sampled.gpus]
    labels = ("gpu", "index", "kind", "engine")
    for name, text, values in (
        ("tensor_activity_ratio", "Tensor-core activity, last second.", [(key, row.tensor) for key, row in rows]),
        ("dram_activity_ratio", "DRAM activity, last second.", [(key, row.dram) for key, row in rows]),
        ("memory_used_bytes", "Memory in use.", [(key, row.memory_used_bytes) for key, row in rows]),
        ("power_watts", "Power.", [(key, row.power_w) for key, row in rows]),
    ):
        yield gauge(f"twinpool_gpu_{name}", text, values, labels)
    sizes = [((gpu.uuid, str(gpu.index), gpu.kind), float(gpu.memory_bytes)) for gpu in facts]
    yield gauge("twinpool_gpu_memory_bytes", "Memory that the GPU has.", sizes, ("gpu", "index", "kind"))
    yield gauge("twinpool_agent_gpus", "GPUs of this node.", one(len(facts)))

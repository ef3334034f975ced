"""Series of the ingest process for Prometheus: what it read and stored, and the live figures as pages show them.

Live figures are of the newest publication; one whose window had no samples is left out, never 0. Percentiles are of merged
sketches over the window that the name tells: they must not be averaged or added up over models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric

from controlplane.common.metrics import by, counter, gauge, one
from controlplane.telemetry.intake import RESULTS, Intake
from controlplane.telemetry.keeper import Keeper
from controlplane.telemetry.rows import FleetRow, LatencyMs, ModelRow
from controlplane.telemetry.topics import FLEET
from controlplane.telemetry.traces import TraceQueue

FRESH_S = 10.0
"""Figures of an older publication are not shown: they would be taken for the present."""


@dataclass
class Following:
    """How the process is doing. Times are Unix seconds on the telemetry server's clock."""

    read_to: float | None = None
    """Nothing that arrived earlier is unread."""
    published_at: float = 0.0
    topics: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    publications: Counter[str] = field(default_factory=lambda: Counter(done=0, failed=0))


def ingest_series(
    now: float, following: Following, intake: Intake, keeper: Keeper, traces: TraceQueue | None
) -> Iterator[Metric]:
    """`now`: on the telemetry server's clock. `traces`: None where they are not exported."""
    counts = dict.fromkeys(RESULTS, 0) | dict(intake.counts)
    yield counter(
        "twinpool_ingest_records_total",
        "Records of the stream; missing: lost before they came (gaps in the senders' numbers).",
        by(counts),
        ("result",),
    )
    lags = {"live": following.read_to, "stored": keeper.consumed_to}
    yield gauge(
        "twinpool_ingest_lag_seconds",
        "Age of the oldest record that is not read yet, for live figures and for PostgreSQL.",
        [((side,), None if reached is None else max(0.0, now - reached)) for side, reached in lags.items()],
        ("side",),
    )
    yield gauge("twinpool_ingest_storing", "0 while rows cannot be stored: the stream keeps them.", one(keeper.well))
    yield counter("twinpool_ingest_store_failures_total", "Attempts to store that failed.", one(keeper.failures))
    rows = {"written": 0, "refused": 0} | dict(keeper.row_counts)
    yield counter("twinpool_ingest_rows_total", "Rows for PostgreSQL; refused ones are dropped.", by(rows), ("result",))
    partitions = {"made": 0, "dropped": 0, "failed": 0} | dict(keeper.partition_counts)
    yield counter(
        "twinpool_ingest_partitions_total",
        "Partitions made ahead and dropped after their time; failed: could not be made or dropped for now.",
        by(partitions),
        ("result",),
    )
    yield counter(
        "twinpool_ingest_publications_total", "Publications of live rows.", by(following.publications), ("result",)
    )
    yield counter(
        "twinpool_ingest_traces_total",
        "Requests for the OpenTelemetry collector; dropped: no room; unsampled: their clients want no trace.",
        by(traces.counts if traces is not None else {}),
        ("result",),
    )
    yield gauge(
        "twinpool_ingest_traces_waiting", "Requests whose spans wait.", one(traces.waiting if traces is not None else None)
    )
    fresh = now - following.published_at <= FRESH_S
    yield from live_series(following.topics.get(FLEET, ()) if fresh else ())


def live_series(rows: Iterable[Any]) -> Iterator[Metric]:
    """Of the rows of the topic `fleet`."""
    fleet = next((row for row in rows if isinstance(row, FleetRow)), None)
    models = [row for row in rows if isinstance(row, ModelRow)]
    yield from _fleet_series(fleet)
    yield gauge(
        "twinpool_model_requests_per_second",
        "Finished requests, last minute.",
        [((row.name,), row.requests_per_s) for row in models],
        ("model",),
    )
    for name, text, latencies in (
        ("ttft_5m", "Time to first token of streamed answers, last 5 minutes.", [(row.name, row.ttft) for row in models]),
        ("itl_5m", "Time between chunks of streamed answers, last 5 minutes.", [(row.name, row.itl) for row in models]),
        ("kv_transfer_1m", "Duration of KV transfers, last minute.", [(row.name, row.transfer) for row in models]),
    ):
        yield from _percentiles(f"twinpool_model_{name}", text, latencies)
    yield gauge(
        "twinpool_model_kv_transfer_bytes_per_second",
        "KV moved, last minute.",
        [((row.name,), row.transfer_bytes_per_s) for row in models],
        ("model",),
    )
    yield gauge(
        "twinpool_model_slo_seconds",
        "The model's targets for p99.",
        [
            ((row.name, latency), ms / 1000)
            for row in models
            for latency, ms in (("ttft", row.slo_ttft_ms), ("itl", row.slo_itl_ms))
        ],
        ("model", "latency"),
    )
    for key, name, text in POOL_SERIES:
        yield gauge(
            f"twinpool_pool_{name}",
            text,
            [((row.name, role), figures.get(key)) for row in models for role, figures in row.pools.items()],
            ("model", "role"),
        )


POOL_SERIES = (
    ("running", "requests_running", "Requests in its engines that told within 5 s."),
    ("waiting", "requests_waiting", "Requests that wait in its engines that told within 5 s."),
    ("tensor", "tensor_activity_ratio", "Mean tensor-core activity of its GPUs, last minute."),
    ("dram", "dram_activity_ratio", "Mean DRAM activity of its GPUs, last minute."),
)


def _fleet_series(fleet: FleetRow | None) -> Iterator[Metric]:
    yield gauge(
        "twinpool_gpus",
        "GPUs by whether they told within 5 s.",
        [(("fresh",), fleet.gpus), (("stale",), fleet.gpus_stale)] if fleet else [],
        ("state",),
    )
    yield gauge(
        "twinpool_effective_gpus",
        "Sum of busy shares (the larger of tensor-core and DRAM activity) over the last minute, stale GPUs left out.",
        by(fleet.effective_by_role) if fleet else [],
        ("role",),
    )
    yield gauge(
        "twinpool_output_tokens_per_second",
        "Tokens that engines generated, last minute, prefill engines left out.",
        one(fleet.output_tokens_per_s if fleet else None),
    )
    yield gauge(
        "twinpool_telemetry_gaps_5m",
        "Telemetry records that were lost in the last 5 minutes.",
        one(fleet.gaps if fleet else None),
    )


def _percentiles(name: str, text: str, latencies: Sequence[tuple[str, LatencyMs]]) -> Iterator[Metric]:
    """Seconds at two percentiles, and of how many values they are."""
    told = [
        ((model, percentile), None if ms is None else ms / 1000)
        for model, latency in latencies
        for percentile, ms in (("p50", latency.p50), ("p99", latency.p99))
    ]
    yield gauge(f"{name}_seconds", text, told, ("model", "percentile"))
    counts = [((model,), latency.count) for model, latency in latencies]
    yield gauge(f"{name}_samples", f"Values behind {name}_seconds.", counts, ("model",))

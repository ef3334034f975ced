"""Reads a few families out of an engine's /metrics page (Prometheus text format 0.0.4), without parsing the rest. Pure.

A real vLLM page is 60 kB of some 700 lines, of which about 100 are wanted, once a second and engine. So wanted lines are
found by substring search, in C; what is not asked for is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from controlplane.core.protocol import Histogram

COUNTERS = {
    "prompt_tokens": b"vllm:prompt_tokens_total",
    "generation_tokens": b"vllm:generation_tokens_total",
    "requests": b"vllm:request_success_total",
    "prefix_queries": b"vllm:prefix_cache_queries_total",
    "prefix_hits": b"vllm:prefix_cache_hits_total",
    "transfer_bytes": b"vllm:nixl_bytes_transferred_sum",
    "transfers": b"vllm:nixl_xfer_time_seconds_count",
    "transfers_failed": b"vllm:nixl_num_failed_transfers_total",
    "leases_expired": b"vllm:nixl_num_kv_expired_reqs_total",
    "preemptions": b"vllm:num_preemptions_total",
}
"""protocol.EngineRow's counter names and vLLM's."""

HISTOGRAMS = {
    "ttft": b"vllm:time_to_first_token_seconds",
    "itl": b"vllm:inter_token_latency_seconds",
    "queue": b"vllm:request_queue_time_seconds",
    "prefill": b"vllm:request_prefill_time_seconds",
    "decode": b"vllm:request_decode_time_seconds",
    "transfer": b"vllm:nixl_xfer_time_seconds",
}

_SOURCES = {"local_tokens": b'source="local_compute"', "external_tokens": b'source="external_kv_transfer"'}


class BadPage(ValueError):
    """The page is not the metrics of a vLLM-like engine."""


@dataclass(frozen=True)
class GpuReport:
    """What a simulated engine says of one of its GPUs. Shares are 0..1; None: it did not say."""

    tensor: float | None = None
    tensor_peak: float | None = None
    dram: float | None = None
    memory_used_bytes: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Page:
    """The wanted figures of one scrape; counters and histograms are cumulative since the engine started."""

    running: int
    waiting: int
    kv_usage: float | None
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    gpus: dict[str, GpuReport] = field(default_factory=dict)


def read_page(page: bytes) -> Page:
    """The figures of a page. Several engine cores behind one server (data parallel) are summed; KV usage is of the fullest.
    Raises BadPage if the numbers of requests are missing or a wanted value is no number."""
    page = b"\n" + page
    running, waiting = _sum(page, b"vllm:num_requests_running"), _sum(page, b"vllm:num_requests_waiting")
    if running is None or waiting is None:
        raise BadPage("/metrics shows no vllm:num_requests_running and _waiting")
    usages = [value for _, value in _samples(page, b"vllm:kv_cache_usage_perc")]
    return Page(
        running=int(running),
        waiting=int(waiting),
        kv_usage=max(usages, default=None),
        counters=_counters(page),
        histograms={name: found for name, family in HISTOGRAMS.items() if (found := _histogram(page, family))},
        gpus=_gpus(page) if b"\ntwinpool:gpu_" in page else {},
    )


def label_of(labels: bytes, name: bytes) -> str | None:
    """The value of one label in `{a="x",b="y"}`; values with escaped quotes are not met in the families read here."""
    start = labels.find(name + b'="')
    while start > 0 and labels[start - 1 : start] not in (b"{", b",", b" "):
        start = labels.find(name + b'="', start + 1)
    if start < 0:
        return None
    start += len(name) + 2
    return labels[start : labels.index(b'"', start)].decode()


def info_labels(page: bytes, family: bytes) -> bytes:
    """The labels of the first sample of an info metric; empty if the page has none."""
    return next((labels for labels, _ in _samples(b"\n" + page, family)), b"")


def _samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """(labels, value) of each sample called exactly `name`."""
    needle = b"\n" + name
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find(b"\n", start)
        line = page[start : end if end >= 0 else len(page)]
        if line[:1] in (b"{", b" "):
            # Split behind the labels, whose values may hold spaces. A timestamp may follow the value.
            labels, _, rest = line.rpartition(b"}") if line[:1] == b"{" else (b"", b"", line)
            try:
                value = float(rest.split()[0])
            except (ValueError, IndexError) as error:
                raise BadPage(f"/metrics: {name.decode()} has no number in {line[:80]!r}") from error
            if math.isfinite(value):  # NaN is Prometheus' "no value"
                yield labels, value
        at = page.find(needle, end) if end >= 0 else -1


def _sum(page: bytes, name: bytes) -> float | None:
    values = [value for _, value in _samples(page, name)]
    return sum(values) if values else None


def _counters(page: bytes) -> dict[str, float]:
    counters = {key: value for key, name in COUNTERS.items() if (value := _sum(page, name)) is not None}
    for labels, value in _samples(page, b"vllm:prompt_tokens_by_source_total"):
        for key, source in _SOURCES.items():
            if source in labels:
                counters[key] = counters.get(key, 0.0) + value
    return counters


def _histogram(page: bytes, family: bytes) -> Histogram | None:
    count, total = _sum(page, family + b"_count"), _sum(page, family + b"_sum")
    if count is None or total is None:
        return None
    buckets: dict[float, float] = {}
    for labels, value in _samples(page, family + b"_bucket"):
        bound = label_of(labels, b"le")
        if bound is None:
            raise BadPage(f"/metrics: a bucket of {family.decode()} has no bound")
        if bound != "+Inf":
            buckets[float(bound)] = buckets.get(float(bound), 0.0) + value
    bounds = sorted(buckets)
    return Histogram(tuple(bounds), tuple(buckets[bound] for bound in bounds), total, count)


def _gpus(page: bytes) -> dict[str, GpuReport]:
    figures: dict[str, dict[str, float]] = {}
    for key, name in (
        ("tensor", b"twinpool:gpu_tensor_activity"),
        ("tensor_peak", b"twinpool:gpu_tensor_activity_peak"),
        ("dram", b"twinpool:gpu_dram_activity"),
        ("memory_used_bytes", b"twinpool:gpu_memory_used_bytes"),
        ("power_w", b"twinpool:gpu_power_watts"),
    ):
        for labels, value in _samples(page, name):
            uuid = label_of(labels, b"gpu")
            if uuid:
                figures.setdefault(uuid, {})[key] = value
    return {uuid: GpuReport(**values) for uuid, values in figures.items()}

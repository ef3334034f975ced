"""The simulated engine's metrics page beside a real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.telemetry.records import COUNTERS, HISTOGRAMS
from workers.engines.simulated.measures import Measures
from workers.engines.simulated.prometheus import Histogram, labelled
from workers.metrics import read_page

REAL = (Path(__file__).parents[1] / "data" / "vllm_served_metrics.txt").read_text()

GAUGES = {
    "running": 2,
    "waiting": 3,
    "waiting_by": {"capacity": 1, "deferred": 2},
    "kv_fetch": {"waiting_to_start": 1, "in_progress": 1, "completed_waiting": 0},
    "sleep": {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
    "kv_usage": 0.25,
    "tensor": {"GPU-1": 0.5},
    "tensor_peak": {"GPU-1": 0.9},
    "dram": {"GPU-1": 0.4},
    "memory": {"GPU-1": 1e9},
    "power": {"GPU-1": 300.0},
}


def page() -> str:
    return Measures("tiny", {"block_size": "16"}).page(GAUGES)


def heads(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("#") and " vllm:" in line)


def series(text: str) -> set[str]:
    """Names with labels of all vLLM samples, the free labels of the cache's description left out."""
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("vllm:")]
    return {re.sub(r"(cache_config_info)\{.*", r"\1", line) for line in lines}


def test_names_types_helps_labels_and_buckets_are_those_of_a_real_page() -> None:
    assert heads(page()) == heads(REAL)
    assert series(page()) == series(REAL)


def test_the_cache_is_described_with_labels_that_vllm_has() -> None:
    real = next(line for line in REAL.splitlines() if line.startswith("vllm:cache_config_info{"))
    mine = next(line for line in page().splitlines() if line.startswith("vllm:cache_config_info{"))
    assert set(re.findall(r"(\w+)=", mine)) <= set(re.findall(r"(\w+)=", real))


def test_the_agent_reads_the_page() -> None:
    measures = Measures("tiny", {})
    measures.observe("ttft_s", 0.3)
    measures.add("by_source", 40, "external_kv_transfer")
    told = read_page(measures.page(GAUGES).encode())
    assert (told.running, told.waiting, told.kv_usage) == (2, 3, 0.25)
    assert told.counters["external_tokens"] == 40
    assert told.histograms["ttft"].count == 1
    assert told.gpus["GPU-1"].tensor == 0.5
    assert told.gpus["GPU-1"].power_w == 300.0


def test_the_agent_finds_the_same_figures_in_a_real_page_and_in_ours() -> None:
    mine, real = read_page(page().encode()), read_page(REAL.encode())
    assert mine.counters.keys() == real.counters.keys() == set(COUNTERS)
    assert mine.histograms.keys() == real.histograms.keys() == set(HISTOGRAMS)
    for name in HISTOGRAMS:
        assert mine.histograms[name].bounds == real.histograms[name].bounds
    assert mine.kv_usage is not None
    assert real.kv_usage is not None


def test_a_histogram_counts_every_bound_above_the_value() -> None:
    histogram = Histogram("h", {}, (1, 2.5))
    for value in (0.5, 1, 2, 99):
        histogram.text()
        histogram.observe(value)
    assert histogram.text() == (
        'h_bucket{le="1.0"} 2.0\nh_bucket{le="2.5"} 3.0\nh_bucket{le="+Inf"} 4.0\nh_count 4.0\nh_sum 102.5\n'
    )


@pytest.mark.parametrize(("value", "shown"), [('a"b', r"a\"b"), ("a\\b", r"a\\b"), ("a\nb", r"a\nb")])
def test_label_values_are_escaped(value: str, shown: str) -> None:
    assert labelled({"m": value}) == f'{{m="{shown}"}}'

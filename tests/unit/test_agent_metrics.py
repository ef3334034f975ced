"""What the agent reads out of an engine's metrics page; the page is a real one (vLLM 0.32, after 5 requests)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core.protocol import EngineSpec, Rank
from workers.compat import compat
from workers.metrics import BadPage, label_of, read_page

PAGE = (Path(__file__).parents[1] / "data" / "vllm_metrics_page.txt").read_bytes()
LOAD = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"


def test_a_real_page_gives_load_and_counters() -> None:
    page = read_page(PAGE)
    assert (page.running, page.waiting, page.kv_usage) == (0, 0, 0.0)
    assert page.counters == {
        "prompt_tokens": 1500.0,
        "generation_tokens": 51.0,
        "requests": 5.0,
        "prefix_queries": 1800.0,
        "prefix_hits": 0.0,
        "local_tokens": 900.0,
        "external_tokens": 600.0,
        "transfer_bytes": 4718592.0,
        "transfers": 3.0,
        "transfers_failed": 0.0,
        "leases_expired": 0.0,
        "preemptions": 0.0,
    }


def test_a_real_page_gives_cumulative_histograms_without_the_infinite_bucket() -> None:
    transfer = read_page(PAGE).histograms["transfer"]
    assert transfer.bounds[:3] == (0.005, 0.01, 0.025)
    assert transfer.counts[:3] == (1.0, 1.0, 2.0)
    assert (transfer.sum, transfer.count) == (118.608484, 3.0)
    assert len(transfer.bounds) == len(transfer.counts) == 12


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    odd = b'python_gc{generation="0"} many\n\xff\xfe{{{\nvllm:lora_info{a="}"} \nvllm:e2e_request_latency_seconds_sum x\n'
    assert read_page(odd + PAGE + odd) == read_page(PAGE)


def test_a_family_the_engine_does_not_have_is_left_out_not_zero() -> None:
    page = read_page(LOAD)
    assert page.counters == {} and page.histograms == {} and page.gpus == {} and page.kv_usage is None


def test_several_engine_cores_behind_one_server_are_summed() -> None:
    page = read_page(
        b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 3.0\n'
        b'vllm:num_requests_waiting{engine="0"} 0.0\nvllm:num_requests_waiting{engine="1"} 1.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        b'vllm:nixl_xfer_time_seconds_bucket{engine="0",le="0.1"} 1\n'
        b'vllm:nixl_xfer_time_seconds_bucket{engine="0",le="+Inf"} 1\n'
        b'vllm:nixl_xfer_time_seconds_count{engine="0"} 1\nvllm:nixl_xfer_time_seconds_sum{engine="0"} 0.05\n'
        b'vllm:nixl_xfer_time_seconds_bucket{engine="1",le="0.1"} 2\n'
        b'vllm:nixl_xfer_time_seconds_bucket{engine="1",le="+Inf"} 2\n'
        b'vllm:nixl_xfer_time_seconds_count{engine="1"} 2\nvllm:nixl_xfer_time_seconds_sum{engine="1"} 0.1\n'
    )
    assert (page.running, page.waiting, page.kv_usage) == (5, 1, 0.6)
    assert page.histograms["transfer"].counts == (3.0,)
    assert page.histograms["transfer"].count == 3.0


def test_a_name_that_only_begins_like_a_wanted_one_is_not_counted() -> None:
    page = read_page(LOAD + b"vllm:num_requests_running_total 7\nvllm:generation_tokens_total_created 9\n")
    assert page.running == 1 and "generation_tokens" not in page.counters


def test_a_simulated_engine_reports_its_gpus() -> None:
    page = read_page(
        LOAD + b'twinpool:gpu_tensor_activity{gpu="a"} 0.5\ntwinpool:gpu_tensor_activity_peak{gpu="a"} 0.9\n'
        b'twinpool:gpu_memory_used_bytes{gpu="a"} 1e+09\ntwinpool:gpu_dram_activity{gpu="b"} 0.25\n'
    )
    assert (page.gpus["a"].tensor, page.gpus["a"].tensor_peak, page.gpus["a"].memory_used_bytes) == (0.5, 0.9, 1e9)
    assert page.gpus["a"].dram is None
    assert page.gpus["b"].dram == 0.25


def test_a_value_that_is_no_number_is_left_out_when_it_is_nan_and_refused_otherwise() -> None:
    assert read_page(LOAD + b"vllm:kv_cache_usage_perc NaN\n").kv_usage is None
    with pytest.raises(BadPage, match="kv_cache_usage_perc has no number"):
        read_page(LOAD + b"vllm:kv_cache_usage_perc many\n")


@pytest.mark.parametrize("page", [b"", b"<html>", PAGE[:2000]])
def test_a_page_without_the_load_is_refused(page: bytes) -> None:
    with pytest.raises(BadPage, match="shows no vllm:num_requests_running"):
        read_page(page)


def test_labels_are_found_by_their_whole_name() -> None:
    assert label_of(b'{block_size="128",_block_size_resolved="True"}', b"block_size") == "128"
    assert label_of(b'{_block_size="x",block_size="16"}', b"block_size") == "16"
    assert label_of(b'{model_name="a"}', b"name") is None


SPEC = EngineSpec(
    id="e", model="m", source="org/m", connector="nixl", ranks=(Rank("n", ("g",)),), kind="vllm", spec_generation=1
)


def test_engines_are_compatible_whatever_their_parallelism_and_name() -> None:
    other = replace(SPEC, id="e2", tensor_parallel=4, spec_generation=9, args={"max_num_seqs": 4})
    assert compat(SPEC, "0.32", PAGE) == compat(other, "0.32", PAGE)


@pytest.mark.parametrize(
    "changes",
    [{"source": "org/other"}, {"connector": "example"}, {"args": {"revision": "abc"}}, {"args": {"dtype": "float32"}}],
)
def test_engines_of_another_model_connector_or_dtype_are_not_compatible(changes: dict[str, object]) -> None:
    assert compat(SPEC, "0.32", PAGE) != compat(replace(SPEC, **changes), "0.32", PAGE)  # type: ignore[arg-type]


def test_what_the_engine_says_of_its_cache_counts_more_than_what_it_was_asked_for() -> None:
    asked = replace(SPEC, args={"block_size": 16})
    assert compat(asked, "0.32", PAGE) == compat(SPEC, "0.32", PAGE)  # the page says 128
    assert compat(asked, "0.32", b"") != compat(SPEC, "0.32", b"")
    assert compat(SPEC, "0.33", PAGE) != compat(SPEC, "0.32", PAGE)

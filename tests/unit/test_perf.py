"""The performance model against measured phases, and what must hold for any step."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.gpus import GPUS, UnknownGpu, gpu
from controlplane.core.modelconfig import Shape, read_shape
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.physics.catalog import DATA

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPE = read_shape(LLAMA_70B)
MIXTRAL = read_shape(
    LLAMA_70B
    | {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
)


def llama(kind: str = "h100-sxm", tp: int = 4, shape: Shape = SHAPE) -> PhaseModel:
    return PhaseModel(shape, GPUS[kind], tp)


def measured_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / "phase_times.json").read_text())["rows"]
    return rows


def predicted_ms(row: dict[str, Any]) -> float:
    model = llama(row["gpu"].replace("_", "-"), row["tp"])
    tokens, batch = row["tokens_in_context"], row["batch"]
    cost = model.step([(tokens, 0)] * batch, 0, 0) if row["phase"] == "prefill" else model.step([], batch, batch * tokens)
    return cost.seconds * 1e3


def test_phases_agree_with_measured_ones() -> None:
    errors = sorted(abs(predicted_ms(row) / row["milliseconds"] - 1) for row in measured_rows())
    assert len(errors) == 28
    assert statistics.median(errors) < 0.03
    assert errors[int(0.9 * len(errors))] < 0.06


def test_prefill_is_bound_by_compute_and_decode_by_memory() -> None:
    prefill, decode = llama().step([(4096, 0)], 0, 0), llama().step([], 32, 32 * 4200)
    assert prefill.tensor > 0.6 > 0.2 > prefill.dram
    assert decode.dram > 0.6 > 0.3 > decode.tensor
    assert prefill.tensor_peak == pytest.approx(0.92, abs=0.01)


def test_a_chunk_in_the_batch_makes_the_decodes_wait() -> None:
    alone, shared = llama().step([], 16, 16 * 2000), llama().step([(2048, 0)], 16, 16 * 2000)
    assert shared.seconds > 5 * alone.seconds


def test_later_chunks_of_a_prompt_cost_more_attention() -> None:
    assert llama().step([(2048, 30000)], 0, 0).seconds > 1.2 * llama().step([(2048, 0)], 0, 0).seconds


def test_a_mixture_of_experts_reads_only_the_experts_it_touches() -> None:
    one, many = llama(tp=2, shape=MIXTRAL).step([], 1, 100), llama(tp=2, shape=MIXTRAL).step([], 64, 6400)
    assert one.seconds < 0.5 * many.seconds
    assert llama(tp=2, shape=MIXTRAL).basis == "guess"


def test_what_was_calibrated_says_so() -> None:
    assert {name for name, row in GPUS.items() if row.basis == "calibrated"} == {"a100-sxm", "h100-sxm"}
    assert llama().basis == "calibrated"
    assert llama("l40s").basis == "guess"


def test_kv_capacity_is_what_the_weights_leave() -> None:
    tokens = llama().kv_capacity_tokens(0.9, 8192)
    assert 400_000 < tokens < 550_000
    assert llama(tp=8).kv_capacity_tokens(0.9, 8192) > 2 * tokens


def test_a_model_that_does_not_fit_says_by_how_many_gb() -> None:
    with pytest.raises(DoesNotFit, match=r"needs 14\d\.\d GB on each of 1 h100-sxm .* \d\d\.\d GB more than 90%"):
        llama(tp=1).kv_capacity_tokens(0.9, 8192)


def test_impossible_tensor_parallelism_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"64 attention heads \(8 KV heads\) cannot be split over 5 GPUs"):
        llama(tp=5)
    with pytest.raises(DoesNotFit):
        llama(tp=0)


def test_an_unknown_gpu_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownGpu, match="h100-sxm"):
        gpu("h900")


chunks = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 30000)), max_size=4)


@given(chunks, st.integers(0, 256), st.integers(1, 30000), st.sampled_from(sorted(GPUS)), st.sampled_from([1, 2, 4, 8]))
def test_a_step_takes_time_and_its_shares_are_shares(
    prefills: list[tuple[int, int]], decodes: int, context: int, kind: str, tp: int
) -> None:
    cost = llama(kind, tp).step(prefills, decodes, decodes * context)
    assert cost.seconds > 0
    assert all(0 <= share <= 1 for share in (cost.tensor, cost.tensor_peak, cost.dram, cost.mfu))


@given(chunks, st.integers(0, 256), st.integers(1, 30000), st.floats(1.0, 4.0))
def test_more_bandwidth_never_slows_a_step(
    prefills: list[tuple[int, int]], decodes: int, context: int, factor: float
) -> None:
    faster = replace(GPUS["h100-sxm"], dram_bytes=3.35e12 * factor, link_bytes=450e9 * factor)
    before = llama().step(prefills, decodes, decodes * context).seconds
    assert PhaseModel(SHAPE, faster, 4).step(prefills, decodes, decodes * context).seconds <= before

"""What pipeline stages change about an engine's steps and memory."""

from __future__ import annotations

import pytest

from controlplane.core.gpus import gpu
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.core.pipeline import HIDDEN_BYTES, Pipeline
from tests.simulated_engines import LLAMA_8B

MODEL = PhaseModel(read_shape(LLAMA_8B), gpu("h100-sxm"), 1)
LINK = 12.5e9
HOP_S = MODEL.shape.hidden * HIDDEN_BYTES / LINK


def test_one_stage_is_the_model_itself() -> None:
    one = Pipeline(MODEL)
    assert one.step([(100, 0)], 3, 900) == MODEL.step([(100, 0)], 3, 900)
    assert one.kv_capacity_tokens(0.9, 8192) == MODEL.kv_capacity_tokens(0.9, 8192)


def test_one_sequence_takes_the_sum_of_the_stages_and_one_transfer_per_boundary() -> None:
    for stages in (2, 4):
        cost = Pipeline(MODEL, (LINK,) * (stages - 1)).step((), 1, 1000)
        alone = MODEL.step((), 1, 1000)
        assert cost.seconds == pytest.approx(alone.seconds + (stages - 1) * HOP_S)
        assert cost.dram == pytest.approx(alone.dram * alone.seconds / stages / cost.seconds)
    prompt = Pipeline(MODEL, (LINK,)).step([(4096, 0)], 0, 0).seconds
    assert prompt == pytest.approx(MODEL.step([(4096, 0)], 0, 0).seconds + 4096 * HOP_S)


def test_two_prompts_share_two_stages_in_the_time_of_one() -> None:
    both = Pipeline(MODEL, (LINK,)).step([(4096, 0), (4096, 0)], 0, 0).seconds
    assert both == pytest.approx(MODEL.step([(4096, 0)], 0, 0).seconds + 4096 * HOP_S)


def test_the_slowest_stage_limits_a_step_of_uneven_layers() -> None:
    stages = 5  # 32 layers: the fullest stage has 7
    pipeline = Pipeline(MODEL, (1e15,) * (stages - 1))
    one = MODEL.step((), 10, 10_000).seconds
    assert pipeline.fullest == 7 / 32
    assert pipeline.step((), 50, 50_000).seconds == pytest.approx(stages * one * 7 / 32)


def test_no_sequence_is_lost_between_the_parts() -> None:
    pipeline = Pipeline(MODEL, (LINK,) * 3)
    for prefills, decodes in (((), 1), ((), 7), (((64, 0),), 2), (((64, 0),) * 5, 3)):
        whole = MODEL.step(prefills, decodes, 100.0 * decodes)
        cost = pipeline.step(prefills, decodes, 100.0 * decodes)
        assert cost.seconds > 0
        flops = whole.mfu * whole.seconds
        assert cost.mfu * cost.seconds * pipeline.stages == pytest.approx(flops)


def test_kv_and_weights_are_divided_by_layers() -> None:
    two, one = Pipeline(MODEL, (LINK,)), Pipeline(MODEL)
    assert two.kv_token_bytes_per_gpu * 2 == one.kv_token_bytes_per_gpu
    assert two.kv_capacity_tokens(0.9, 8192) > 2 * one.kv_capacity_tokens(0.9, 8192)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="32 layers cannot be divided into 33 pipeline stages"):
        Pipeline(MODEL, (LINK,) * 32)

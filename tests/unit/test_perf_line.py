"""A decode step as a line in its contexts, and both stacks' steps: what must hold for any numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core import kvsize
from controlplane.core.gpus import CURRENT, GPUS, STACK_2023, STACKS
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.physics.catalog import config_names, read_config

SHAPES = {name: read_shape(read_config(name)) for name in config_names()}
FITTING = sorted(name for name in SHAPES if SHAPES[name].splits_over(8))

shapes = st.sampled_from(FITTING)
stacks = st.sampled_from(sorted(STACKS))
kinds = st.sampled_from(sorted(GPUS))
degrees = st.sampled_from([1, 2, 4, 8])
batches = st.integers(1, 512)
contexts = st.integers(1, 200_000)
chunks = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 30000)), max_size=3)


def model(name: str, tp: int = 8, kind: str = "h100-sxm", stack: str = "current") -> PhaseModel:
    return PhaseModel(SHAPES[name], GPUS[kind], tp, stack=STACKS[stack])


@given(shapes, degrees, kinds, stacks, batches, contexts, st.floats(0, 1))
def test_the_line_of_decodes_is_the_step_itself(
    name: str, tp: int, kind: str, stack: str, batch: int, context: int, along: float
) -> None:
    phases = model(name, tp, kind, stack)
    start = batch * context
    line = phases.decode_line(batch, start)
    assert line.until_context > start
    on_it = start + along * (min(line.until_context, 2.0 * start) - start) * 0.999
    cost = phases.step((), batch, on_it)
    assert line.base_s + line.per_token_s * on_it == pytest.approx(cost.seconds, rel=1e-9)
    dram_s = line.dram_base_s + line.dram_per_token_s * on_it
    assert min(dram_s, cost.seconds) == pytest.approx(cost.dram * cost.seconds, rel=1e-9)
    assert min(line.tensor_s, cost.seconds) == pytest.approx(cost.tensor * cost.seconds, rel=1e-9)


@given(shapes, stacks, chunks, st.integers(0, 256), contexts, st.floats(1.0, 4.0))
def test_a_faster_gpu_never_slows_a_step(
    name: str, stack: str, prefills: list[tuple[int, int]], decodes: int, context: int, factor: float
) -> None:
    before = model(name, stack=stack).step(prefills, decodes, decodes * context).seconds
    row = GPUS["h100-sxm"]
    for faster in (
        replace(row, dram_bytes=row.dram_bytes * factor),
        replace(row, link_bytes=row.link_bytes * factor),
        replace(row, bf16_flops=row.bf16_flops * factor, fp8_flops=1979e12 * factor),
    ):
        after = PhaseModel(SHAPES[name], faster, 8, stack=STACKS[stack]).step(prefills, decodes, decodes * context)
        assert after.seconds <= before * (1 + 1e-12)


@given(shapes, stacks, st.integers(1, 30_000), st.integers(0, 30_000), st.integers(1, 4), st.integers(1, 5_000))
def test_more_tokens_take_more_time(name: str, stack: str, tokens: int, past: int, batch: int, more: int) -> None:
    phases = model(name, stack=stack)
    cost = phases.prefill(tokens, past, batch).seconds
    assert phases.prefill(tokens + more, past, batch).seconds >= cost
    if all(group.kind != "chunked" for group in SHAPES[name].attention):  # a token that opens a chunk sees none before it
        assert phases.prefill(tokens, past + more, batch).seconds >= cost * (1 - 1e-12)
    assert phases.prefill(tokens, past, batch + 1).seconds >= cost
    step = phases.decode(batch, tokens).seconds
    assert phases.decode(batch, tokens + more).seconds >= step * (1 - 1e-12)
    assert phases.decode(batch + 1, tokens).seconds >= step


@given(shapes, degrees, batches, contexts)
def test_a_decode_reads_what_the_sizes_say(name: str, tp: int, batch: int, context: int) -> None:
    phases, bandwidth = model(name, tp), GPUS["h100-sxm"].dram_bytes
    line, empty = phases.decode_line(batch, batch * context), phases.decode_line(batch, 0)
    read = (line.dram_base_s - empty.dram_base_s + line.dram_per_token_s * batch * context) * bandwidth
    expected = kvsize.kv_read_bytes(SHAPES[name], tp, None, batch, batch * context)
    states = kvsize.kv_read_bytes(SHAPES[name], tp, None, batch, 0)
    assert read == pytest.approx(expected - states, rel=1e-6, abs=1e3)


@given(shapes, degrees, st.integers(1, 8192), st.integers(0, 100_000))
def test_a_prefill_computes_what_the_sizes_say(name: str, tp: int, tokens: int, past: int) -> None:
    shape, row = SHAPES[name], GPUS["a100-sxm"]
    cost = PhaseModel(shape, row, tp).prefill(tokens, past)
    matrices = 2.0 * kvsize.parameters(shape).linear_active * tokens
    expected = matrices + kvsize.attention_flops(shape, tokens, past)
    assert cost.mfu * cost.seconds * row.bf16_flops * tp == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", FITTING)
def test_more_gpus_never_hold_less(name: str) -> None:
    sizes = [PhaseModel(SHAPES[name], GPUS["mi300x"], tp).kv_capacity_tokens(20.0, 8192) for tp in (1, 2, 4, 8)]
    assert sizes == sorted(sizes)


def test_a_group_beyond_a_server_talks_over_the_network() -> None:
    inside, beyond = model("llama-3.1-70b", 8).prefill(4096), model("llama-3.1-70b", 16).prefill(4096)
    assert beyond.seconds > inside.seconds
    assert any("between servers" in reason for reason in model("llama-3.1-70b", 16).guesses)
    assert not any("between servers" in reason for reason in model("llama-3.1-70b", 16, "gb200").guesses)


def test_a_latent_is_limited_by_its_products_where_many_heads_read_it() -> None:
    row = GPUS["h100-sxm"]
    few, many = (PhaseModel(SHAPES["deepseek-v3"], row, tp, kv_dtype="fp8") for tp in (8, 1))
    assert few.kv_token_bytes_per_gpu == many.kv_token_bytes_per_gpu
    reading_s = many.kv_token_bytes_per_gpu / (row.dram_bytes * row.efficiency.kv)
    assert few.decode_line(1).per_token_s == pytest.approx(reading_s)
    assert many.decode_line(1).per_token_s > 1.5 * reading_s


def test_the_2023_stack_decodes_no_faster_on_more_gpus() -> None:
    today = [model("llama-2-70b", tp).decode(1, 576).seconds for tp in (4, 8)]
    past = [model("llama-2-70b", tp, stack="2023").decode(1, 576).seconds for tp in (4, 8)]
    assert today[1] < 0.75 * today[0]
    assert past[1] == past[0] > today[0]


def test_a_model_type_without_a_host_floor_of_its_own_says_so_in_the_2023_stack() -> None:
    assert model("llama-2-70b", stack="2023").guesses == ()
    assert model("bloom-176b", stack="2023").guesses == ()
    assert any("host" in reason for reason in model("qwen3-32b", stack="2023").guesses)


def test_today_waits_for_no_host() -> None:
    assert CURRENT.host_s("llama", "hopper") == 0.0
    assert STACK_2023.line(1.0, 0.0) == CURRENT.line(1.0, 0.0)

"""A statement is whole cents that add up, whichever way its lines are grouped."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cost import Price, PriceBook, Tokens, Use
from controlplane.core.statement import Segment, Statement, apportion, statement

BOOK = PriceBook({"h100-sxm": Price(2.6, "owned"), "l4": Price(0.7)})
HOURS = st.floats(0.0, 100.0)


@st.composite
def a_use(draw: st.DrawFn) -> Use:
    model = draw(st.sampled_from(["", "llama", "qwen"]))
    busy, idle, stranded, rest, unknown = (draw(HOURS) for _ in range(5))
    return Use(
        model,
        draw(st.sampled_from(["prefill", "decode", "mixed"])) if model else "",
        draw(st.sampled_from(["h100-sxm", "l4"])),
        busy + idle + stranded + rest + unknown,
        busy,
        idle,
        stranded,
        unknown,
    )


@st.composite
def some_tokens(draw: st.DrawFn) -> Tokens:
    prompt = draw(st.integers(0, 10**9))
    return Tokens(
        draw(st.sampled_from(["llama", "qwen", "gone"])),
        draw(st.sampled_from(["", "search", "ads"])),
        prompt,
        draw(st.integers(0, 10**8)),
        draw(st.integers(0, prompt)),
        draw(st.integers(0, 10**6)),
        draw(st.sampled_from(["", "k1"])),
    )


@st.composite
def a_segment(draw: st.DrawFn) -> Segment:
    return Segment(
        draw(st.sampled_from(["2026-11-01", "2026-11-02"])),
        draw(st.sampled_from([BOOK, PriceBook({"h100-sxm": Price(3.3)})])),
        tuple(draw(st.lists(a_use(), max_size=4))),
        tuple(draw(st.lists(some_tokens(), max_size=5, unique_by=lambda each: (each.model, each.team, each.key)))),
    )


@given(st.lists(a_segment(), max_size=4))
def test_all_parts_add_up_to_the_total_whichever_way_they_are_grouped(segments: list[Segment]) -> None:
    found = statement(segments)
    of_models = sum(model.cents or 0 for model in found.models)
    assert of_models + found.unassigned_cents == found.total_cents
    assert sum(pool.cents or 0 for pool in found.pools) == found.total_cents
    assert sum(line.cents or 0 for line in found.lines) == found.total_cents
    for model in found.models:
        assert (model.prefill_cents or 0) + (model.decode_cents or 0) + (model.mixed_cents or 0) == model.cents
        assert sum(line.cents or 0 for line in found.lines if line.model == model.model) == model.cents
    for pool in found.pools:
        states = (pool.busy_cents, pool.underused_cents, pool.idle_cents, pool.stranded_cents, pool.unknown_cents)
        assert sum(cents or 0 for cents in states) == pool.cents
        assert min(cents or 0 for cents in states) >= 0


@given(st.lists(a_segment(), max_size=4))
def test_the_total_is_what_the_gpus_cost_to_the_half_cent_and_no_token_is_lost(segments: list[Segment]) -> None:
    found = statement(segments)
    spent = math.fsum(
        use.gpu_hours * price.per_hour for each in segments for use in each.uses if (price := each.book.of(use.kind))
    )
    assert abs(found.total_cents - spent * 100) <= 0.5 + 1e-6 * spent
    given_tokens = sum(tokens.prompt + tokens.output for each in segments for tokens in each.tokens)
    assert sum(line.prompt_tokens + line.output_tokens for line in found.lines) == given_tokens
    held = math.fsum(use.gpu_hours for each in segments for use in each.uses)
    assert math.fsum(pool.gpu_hours for pool in found.pools) == pytest.approx(held)


@given(st.integers(0, 10**9), st.lists(st.floats(0.0, 1e9), min_size=1, max_size=30))
def test_apportioned_parts_add_up_and_are_within_one_of_their_share(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    if whole := math.fsum(weights):
        assert all(abs(part - total * (weight / whole)) < 1.001 for part, weight in zip(parts, weights, strict=True))


def one(*segments: Segment) -> Statement:
    return statement(segments)


def test_a_price_that_changes_costs_the_old_one_before_and_the_new_one_after() -> None:
    use = Use("llama", "decode", "l4", 10.0, 10.0)
    tokens = (Tokens("llama", "search", 0, 1_000_000),)
    before = Segment("2026-11-10", PriceBook({"l4": Price(1.0)}), (use,), tokens)
    after = Segment("2026-11-10", PriceBook({"l4": Price(3.0)}), (use,), tokens)
    found = one(before, after)
    assert found.total_cents == 4000
    assert [(line.day, line.output_tokens, line.cents) for line in found.lines] == [("2026-11-10", 2_000_000, 4000)]
    assert found.models[0].per_million_output == pytest.approx(20.0)
    assert found.models[0].per_million_input is None, "there was no prefill pool"


def test_a_day_without_traffic_is_nobodys_and_gpus_in_no_pool_are_a_line_of_their_own() -> None:
    uses = (Use("llama", "decode", "l4", 10.0, 0.0, idle_hours=10.0), Use("", "", "l4", 5.0, stranded_hours=5.0))
    found = one(Segment("2026-11-01", BOOK, uses, ()))
    assert [(line.model, line.served, line.cents) for line in found.lines] == [("", False, 350), ("llama", False, 700)]
    assert (found.unassigned_cents, found.models[0].idle_cents) == (350, 700)
    assert found.models[0].per_million_tokens is None
    assert "nothing was served" in found.models[0].gaps


def test_what_has_no_price_is_not_known_and_not_part_of_the_total() -> None:
    uses = (Use("m", "decode", "odd-gpu", 5.0, 1.0), Use("m", "prefill", "l4", 1.0, 1.0), Use("n", "decode", "l4", 1.0, 1.0))
    found = one(Segment("2026-11-01", BOOK, uses, (Tokens("m", "t", 10, 10),)))
    assert found.total_cents == 70
    assert Counter((model.model, model.cents) for model in found.models) == {("m", None): 1, ("n", 70): 1}
    assert [line.cents for line in found.lines if line.model == "m"] == [None]
    assert found.gaps == ("GPU kind odd-gpu has no price: give it one in the price book",)
    assert "GPU kind odd-gpu has no price: give it one in the price book" in found.models[0].gaps


def test_mixed_pools_are_not_told_apart_and_say_so() -> None:
    found = one(Segment("d", BOOK, (Use("m", "mixed", "l4", 10.0, 5.0),), (Tokens("m", "t", 100, 100),)))
    (model,) = found.models
    assert (model.cents, model.mixed_cents, model.prefill_cents) == (700, 700, 0)
    assert model.per_million_input is None and model.per_million_output is None
    assert model.per_million_tokens == pytest.approx(70_000.0)

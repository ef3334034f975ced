"""Costs: every GPU-hour once, prompts and answers apart, shares that add up, and what other GPUs would cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cost import Price, PriceBook, PriceRefused, Tokens, Use, bill, what_if

BOOK = PriceBook({"h100-sxm": Price(2.0, "owned"), "l4": Price(0.5)})


def test_prompts_are_paid_by_the_prefill_pool_and_answers_by_the_decode_pool() -> None:
    uses = [
        Use("llama", "prefill", "h100-sxm", 10.0, 8.0, idle_hours=1.0, stranded_hours=0.5),
        Use("llama", "decode", "h100-sxm", 30.0, 20.0, idle_hours=4.0),
    ]
    (model,) = bill(uses, [Tokens("llama", "search", 4_000_000, 1_000_000, requests=100)], BOOK).models
    assert (model.cost, model.prefill_cost, model.decode_cost) == (80.0, 20.0, 60.0)
    assert (model.idle_cost, model.stranded_cost) == (10.0, 1.0)
    assert model.per_million_input == pytest.approx(5.0)
    assert model.per_million_output == pytest.approx(60.0)
    assert model.per_million_tokens == pytest.approx(80.0)
    assert model.gaps == ()


def test_a_mixed_pool_is_split_by_its_time_or_not_at_all() -> None:
    tokens = [Tokens("m", "t", 1_000_000, 1_000_000)]
    (known,) = bill([Use("m", "mixed", "l4", 100.0, prefill_share=0.25)], tokens, BOOK).models
    assert (known.prefill_cost, known.decode_cost) == (12.5, 37.5)
    (unknown,) = bill([Use("m", "mixed", "l4", 100.0)], tokens, BOOK).models
    assert unknown.cost == 50.0
    assert unknown.prefill_cost is None
    assert unknown.per_million_tokens == pytest.approx(50.0)
    assert "it is not known how much of the mixed pool's time went to prompts" in unknown.gaps


def test_gpus_in_no_pool_are_unassigned_and_a_kind_without_price_is_named() -> None:
    found = bill([Use("", "", "l4", 10.0, stranded_hours=10.0), Use("m", "mixed", "odd-gpu", 5.0)], [], BOOK)
    assert found.unassigned == 5.0
    assert found.total == 5.0
    assert found.gaps == ("GPU kind odd-gpu has no price: give it one in the price book",)
    assert found.models[0].cost is None


def test_a_list_price_is_marked_as_a_guess() -> None:
    assert bill([Use("m", "decode", "h200-sxm", 1.0)], [], BOOK).guess
    assert not bill([Use("m", "decode", "l4", 1.0)], [], BOOK).guess


def test_teams_pay_for_what_had_to_be_computed() -> None:
    uses = [Use("m", "prefill", "l4", 100.0), Use("m", "decode", "l4", 100.0)]
    tokens = [Tokens("m", "cached", 1000, 500, cached=1000), Tokens("m", "new", 1000, 500)]
    first, second = bill(uses, tokens, BOOK).shares
    assert first.cost == pytest.approx(25.0)
    assert second.cost == pytest.approx(75.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 1)).map(
            lambda row: Tokens("m", "t", row[0], row[1], cached=int(row[0] * row[2]))
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_the_shares_of_a_model_add_up_to_its_cost(tokens: list[Tokens], one: float, two: float, share: float | None) -> None:
    uses = [Use("m", "prefill", "l4", one), Use("m", "mixed", "h100-sxm", two, prefill_share=share)]
    found = bill(uses, tokens, BOOK)
    assert sum(each.cost or 0.0 for each in found.shares) == pytest.approx(found.models[0].cost)
    assert found.total == pytest.approx(sum(pool.cost or 0.0 for pool in found.pools))


def test_the_recommended_split_shows_what_it_saves() -> None:
    found = what_if({"h100-sxm": 64}, {"h100-sxm": 52}, BOOK, tokens_per_second=1000.0)
    assert (found.now_per_hour, found.then_per_hour, found.saved_per_hour) == (128.0, 104.0, 24.0)
    assert found.saved_per_month == 24.0 * 730
    assert found.per_million_tokens_now == pytest.approx(128 / 3.6)
    assert "saves 24.00 US$ an hour" in found.sentence
    assert what_if({"l4": 1}, {}, BOOK, tokens_per_second=1.0).per_million_tokens_then is None, "no GPUs make no tokens"
    assert "costs another" in what_if({"l4": 1}, {"l4": 2}, BOOK).sentence


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_cannot_be_is_refused(price: float) -> None:
    with pytest.raises(PriceRefused, match="must cost 0 to"):
        Price(price)
    with pytest.raises(PriceRefused, match="no price"):
        what_if({"odd": 1}, {}, BOOK)

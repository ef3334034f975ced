"""Layouts are read from one line, and a slip is told with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.gpus import GPUS
from controlplane.core.layout import Layout, LayoutRefused, PoolLayout, monolithic, parse_layout, split


def test_one_pool_serves_whole_requests_on_the_default_kind() -> None:
    layout = parse_layout("agg:8xTP4", "h100-sxm")
    assert layout == monolithic(8, 4, "h100-sxm")
    assert (layout.mode, layout.gpus, layout.pools[0].role) == ("monolithic", 32, "mixed")


def test_a_split_names_prefill_first_and_may_mix_kinds() -> None:
    layout = parse_layout("disagg:12xTP2@h100-sxm+2xTP4@h200-sxm", "a100-sxm")
    assert layout == split((12, 2, "h100-sxm"), (2, 4, "h200-sxm"))
    assert layout.gpus == 32
    assert layout.gpus_by_kind == {"h100-sxm": 24, "h200-sxm": 8}
    assert [(pool.role, pool.engines) for pool in layout.pools] == [("prefill", 12), ("decode", 2)]


def test_whole_requests_may_be_served_by_pools_of_several_kinds() -> None:
    layout = parse_layout("agg:2xTP4+1xTP4@h200-sxm", "h100-sxm")
    assert [(pool.role, pool.gpu) for pool in layout.pools] == [("mixed", "h100-sxm"), ("mixed", "h200-sxm")]


def test_a_kind_is_the_default_only_where_none_is_written() -> None:
    layout = parse_layout("cond:1xtp1+1xTP2@l40s", "l4")
    assert layout.mode == "conditional"
    assert [pool.gpu for pool in layout.pools] == ["l4", "l40s"]


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "must start with"),
        ("8xTP4", 1, "must start with"),
        ("aggr:8xTP4", 1, "must start with"),
        ("agg:", 5, "number of engines"),
        ("agg:xTP4", 5, "number of engines"),
        ("agg:8TP4", 6, "expected 'x'"),
        ("agg:8x4", 7, "expected 'TP'"),
        ("agg:8xTP", 9, "tensor-parallel degree"),
        ("agg:0xTP4", 5, "1 to 4,096"),
        ("agg:8xTP0", 9, "1 to 64"),
        ("agg:-8xTP4", 5, "number of engines"),
        ("agg:99999999999999999999xTP1", 5, "1 to 4,096"),
        ("agg:8xTP4@h100", 11, "GPU kind 'h100' is not known"),
        ("agg:8xTP4@", 11, "is not known"),
        ("agg:8xTP4 ", 10, "expected '+' and another pool, or the end"),
        ("agg:8xTP4+", 11, "number of engines of the mixed pool"),
        ("agg:1xTP1+1xTP1+1xTP1+1xTP1+1xTP1", 28, "expected the end after 4 pools"),
        ("disagg:12xTP2", 14, "expected '+' and the decode pool"),
        ("disagg:12xTP2+", 15, "number of engines of the decode pool"),
        ("disagg:12xTP2+2xTP4+1xTP1", 20, "expected the end"),
        ("disagg:12xTP2@h100-sxm+2xTP4@h300", 30, "'h300' is not known"),
        ("agg:٣xTP4", 5, "number of engines"),
        ("agg:" + "1" * 300, 200, "longer than any layout"),
    ],
)
def test_a_slip_is_named_with_its_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(LayoutRefused) as refused:
        parse_layout(text, "h100-sxm")
    assert refused.value.position == position
    assert problem in str(refused.value)
    assert f"character {position}:" in str(refused.value)


def test_pools_that_a_mode_does_not_have_are_no_layout() -> None:
    with pytest.raises(ValueError, match="mode disaggregated has the pools prefill, decode, got mixed"):
        Layout("disaggregated", (PoolLayout("mixed", 1, 1, "l4"),))
    with pytest.raises(ValueError, match="mode monolithic has 1 to 4 mixed pools, got none"):
        Layout("monolithic", ())
    with pytest.raises(ValueError, match="at least one engine"):
        PoolLayout("mixed", 0, 1, "l4")


pools = st.tuples(st.integers(1, 4096), st.integers(1, 64), st.sampled_from(sorted(GPUS)))


@given(pools, pools)
def test_what_is_written_is_read_again(prefill: tuple[int, int, str], decode: tuple[int, int, str]) -> None:
    for layout in (monolithic(*prefill), split(prefill, decode), split(prefill, decode, "conditional")):
        assert parse_layout(layout.text, "l4") == layout


@given(st.text(max_size=40))
def test_no_text_ends_in_anything_but_a_layout_or_a_refusal(text: str) -> None:
    try:
        assert parse_layout(text, "l4").gpus > 0
    except LayoutRefused as refused:
        assert 1 <= refused.position <= len(text) + 1

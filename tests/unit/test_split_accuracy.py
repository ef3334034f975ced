"""The comparison of modes agrees with the reference's seven scenarios as far as it is held to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.physics import split_accuracy
from controlplane.physics.split_accuracy import MISS, section
from controlplane.physics.split_reference import Compared, at_listed, compared, scenarios


@pytest.fixture(scope="module")
def rows() -> list[Compared]:
    return compared()


@pytest.fixture(scope="module")
def found() -> tuple[str, dict[str, Any]]:
    return section()


def test_at_the_references_layouts_every_clear_winner_is_right(rows: list[Compared]) -> None:
    clear = [row for row in rows if row.clear]
    assert len(clear) == 5
    assert [row.scenario.name for row in clear if not row.right_when_listed] == []


def test_at_the_references_layouts_the_ratio_is_within_6_percent_in_the_median(found: tuple[str, dict[str, Any]]) -> None:
    assert found[1]["listed_ratio_error"]["median"] <= 0.06


def test_our_own_search_finds_the_same_ratio_within_10_percent_in_the_median_and_20_at_p90(
    found: tuple[str, dict[str, Any]],
) -> None:
    error = found[1]["search_ratio_error"]
    assert error["median"] <= 0.10
    assert error["p90"] <= 0.20


@pytest.mark.parametrize("name", [scenario.name for scenario in scenarios()])
def test_our_own_search_gives_the_prefill_pool_the_same_share_of_the_gpus(rows: list[Compared], name: str) -> None:
    row = next(row for row in rows if row.scenario.name == name)
    assert abs(row.share_error) <= 0.1


def test_our_own_search_names_every_clear_winner(rows: list[Compared]) -> None:
    assert [row.scenario.name for row in rows if row.clear and not row.right_when_searched] == []


def test_each_miss_is_explained(found: tuple[str, dict[str, Any]], rows: list[Compared]) -> None:
    text = found[0]
    for row in rows:
        name = row.scenario.name
        told = f"**{name}, at its layouts**" in text, f"**{name}, own search**" in text
        assert told == (
            abs(row.listed_error) > MISS or not row.right_when_listed,
            abs(row.search_error) > MISS or not row.right_when_searched,
        )
        assert not any(told) or name in split_accuracy._CAUSES


def test_the_correction_factors_of_two_pools_are_what_keeps_the_ratio_down(rows: list[Compared]) -> None:
    for row in rows:
        assert 1.1 < row.bare.ratio / row.listed.ratio < 1.25


def test_fp8_is_read_from_the_checkpoints_own_description() -> None:
    quantised = next(scenario for scenario in scenarios() if scenario.name == "s2")
    plain = next(scenario for scenario in scenarios() if scenario.name == "s1")
    assert quantised.model(4).kv_token_bytes * 2 == plain.model(4).kv_token_bytes == 327_680
    assert at_listed(quantised).prefill.seconds < at_listed(plain).prefill.seconds * 2


def test_the_section_is_the_same_each_time_and_its_figures_are_json(found: tuple[str, dict[str, Any]]) -> None:
    assert section() == found
    assert json.loads(json.dumps(found[1], allow_nan=False)) == found[1]
    assert found[0].startswith("## Splits")
    assert all(len(line) <= 125 for line in found[0].splitlines() if not line.startswith("|"))

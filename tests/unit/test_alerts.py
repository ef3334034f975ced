"""Alerts begin after their value was bad for long enough, end after it was good for long enough, and do not flap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.alertrules import RULES, burn, failure_share, summary
from controlplane.core.alerts import (
    GONE,
    MAX_GAP_S,
    SWITCHED_OFF,
    Course,
    Move,
    Observation,
    Open,
    Setting,
    decide,
    step,
)

LIMIT = Setting(threshold=100.0, clear_at=90.0, for_s=60.0, clear_s=120.0)
EVERY_S = 10.0


def play(setting: Setting, values: list[float | None], every_s: float = EVERY_S) -> list[tuple[float, str]]:
    """What happens, and when, if the value is looked at that often."""
    course, found = None, []
    for number, value in enumerate(values):
        kind, course = step(setting, course, value, number * every_s)
        if kind != "stay":
            found.append((number * every_s, kind))
    return found


def test_it_fires_once_its_value_was_bad_for_long_enough() -> None:
    assert play(LIMIT, [50.0, 101.0] + [101.0] * 10) == [(10.0, "pend"), (70.0, "fire")]


def test_a_short_peak_fires_nothing() -> None:
    assert play(LIMIT, [50.0, *[200.0] * 6, 50.0, 50.0]) == [(10.0, "pend"), (70.0, "drop")]


def test_a_rule_without_a_duration_fires_at_once() -> None:
    assert play(replace(LIMIT, for_s=0.0), [50.0, 101.0]) == [(10.0, "fire")]


def test_it_resolves_once_its_value_was_good_for_long_enough() -> None:
    assert play(replace(LIMIT, for_s=0.0), [101.0] + [90.0] * 14) == [(0.0, "fire"), (130.0, "resolve")]


def test_a_value_at_the_threshold_is_not_bad_and_between_the_levels_nothing_ends() -> None:
    assert play(replace(LIMIT, for_s=0.0), [100.0] * 3) == []
    assert play(replace(LIMIT, for_s=0.0), [101.0] + [95.0] * 50) == [(0.0, "fire")]


def test_a_relapse_begins_the_time_of_recovery_anew() -> None:
    assert play(replace(LIMIT, for_s=0.0), [101.0, *[80.0] * 12, 101.0, *[80.0] * 13]) == [(0.0, "fire"), (260.0, "resolve")]


def test_too_little_is_bad_where_the_rule_says_so() -> None:
    few = RULES["pool_empty"].setting()
    assert [few.verdict(value) for value in (0.0, 1.0, 2.0)] == ["bad", "good", "good"]


def test_missing_data_neither_fires_nor_resolves_and_no_clock_runs() -> None:
    assert play(LIMIT, [101.0, *[None] * 100]) == [(0.0, "pend")]
    assert play(replace(LIMIT, for_s=0.0), [101.0, 50.0, *[None] * 100]) == [(0.0, "fire")]
    # A minute of bad values on both sides of a gap is not enough by itself, two halves of it are.
    assert play(LIMIT, [101.0, 101.0, 101.0, 101.0, None, None, 101.0, 101.0, 101.0, 101.0])[-1] == (90.0, "fire")
    assert play(LIMIT, [None, None]) == []


def test_time_in_which_nobody_looked_counts_for_nothing() -> None:
    assert play(LIMIT, [101.0] * 10, every_s=MAX_GAP_S + 1) == [(0.0, "pend")]
    course = Course("pending", 50.0, 1000.0, "bad")
    assert step(LIMIT, course, 101.0, 900.0) == ("stay", Course("pending", 50.0, 900.0, "bad")), "a clock that was set back"


VALUES = st.lists(st.one_of(st.none(), st.floats(0, 200)), max_size=200)
SETTINGS = st.builds(
    lambda clear, above, for_s, clear_s: Setting(
        100.0, 100.0 - clear if above else 100.0 + clear, for_s, clear_s, above=above
    ),
    st.floats(0, 50),
    st.booleans(),
    st.sampled_from([0.0, 10.0, 60.0]),
    st.sampled_from([10.0, 60.0, 300.0]),
)


@given(SETTINGS, VALUES)
def test_nothing_flaps(setting: Setting, values: list[float | None]) -> None:
    """Between a fire and its resolve the value was good for clear_s at a stretch, between a resolve and the next fire bad
    for for_s: so there are never more changes than the durations allow."""
    happened = [(at, kind) for at, kind in play(setting, values) if kind in ("fire", "resolve")]
    assert [kind for _, kind in happened] == [("fire", "resolve")[place % 2] for place in range(len(happened))]
    for (before, kind), (after, _) in itertools.pairwise(happened):
        known = [setting.verdict(value) for value in values[int(before / EVERY_S) : int(after / EVERY_S) + 1]]
        if kind == "fire":
            assert after - before >= setting.clear_s
            tail = [verdict for verdict in known[1:] if verdict != "unknown"]
            needed = round(setting.clear_s / EVERY_S)
            assert tail[-needed:] == ["good"] * needed
        else:
            assert after - before >= setting.for_s and known[-1] == "bad"


@given(SETTINGS, VALUES, st.integers(0, 199), st.integers(1, 60))
def test_a_gap_in_the_data_changes_no_state(setting: Setting, values: list[float | None], place: int, length: int) -> None:
    """What is firing before a gap is firing after it, and nothing begins in it."""
    place = min(place, len(values))
    before = play(setting, values[:place])
    assert play(setting, [*values[:place], *[None] * length]) == before


@given(SETTINGS, st.lists(st.floats(0, 200), min_size=1, max_size=60))
def test_looking_again_at_the_same_moment_changes_nothing(setting: Setting, values: list[float]) -> None:
    """A tick that was killed after it wrote is repeated: the same look twice fires nothing twice."""
    course, twice = None, None
    for number, value in enumerate(values):
        _, course = step(setting, course, value, number * EVERY_S)
        _, twice = step(setting, twice, value, number * EVERY_S)
        again = step(setting, twice, value, number * EVERY_S)[1]
        if twice is not None:
            assert again == twice
        assert course == twice


def settings(rule: str, _model: str) -> Setting | None:
    return {"on": LIMIT, "off": replace(LIMIT, enabled=False)}.get(rule)


def opened(rule: str, subject: str, phase: str = "firing") -> Open:
    return Open(7, rule, subject, "m", Course(phase, 0.0, 0.0, "bad"))  # type: ignore[arg-type]


def only(moves: list[Move]) -> Move:
    (move,) = moves
    return move


def test_what_is_no_more_ends_its_alert() -> None:
    move = only(decide({"on": []}, [opened("on", "model:x")], settings, 10.0))
    assert (move.kind, move.reason, move.id) == ("resolve", GONE, 7)
    assert only(decide({"on": []}, [opened("on", "model:x", "pending")], settings, 10.0)).kind == "drop"


def test_a_rule_that_could_not_look_leaves_its_alerts_as_they_are() -> None:
    move = only(decide({"on": None}, [opened("on", "model:x")], settings, 10.0))
    assert move.kind == "stay" and move.course == Course("firing", 0.0, 10.0, "unknown")
    assert only(decide({}, [opened("on", "model:x")], settings, 10.0)).kind == "stay"


@pytest.mark.parametrize("rule", ["off", "none such"])
def test_a_rule_that_is_off_or_gone_ends_its_alerts_and_begins_none(rule: str) -> None:
    looks = {rule: [Observation("model:x", 500.0, "m")]}
    assert only(decide(looks, [opened(rule, "model:x")], settings, 10.0)).reason == SWITCHED_OFF
    assert decide(looks, [], settings, 10.0) == []


def test_a_bad_value_begins_an_alert_and_a_good_one_none() -> None:
    looks = {"on": [Observation("model:x", 500.0, "m"), Observation("model:y", 5.0, "m")]}
    move = only(decide(looks, [], settings, 10.0))
    assert (move.kind, move.subject, move.id, move.setting) == ("pend", "model:x", 0, LIMIT)


def test_a_budget_burns_by_its_bad_share_and_few_requests_make_no_fire() -> None:
    assert burn(1, 100) == pytest.approx(1.0)
    assert burn(20, 100) == pytest.approx(20.0)
    assert burn(1, 2) == pytest.approx(10.0), "judged as one of ten"
    assert burn(0, 0) == 0.0
    assert failure_share(1, 3) == 0.01 and failure_share(30, 300) == pytest.approx(0.1)


@pytest.mark.parametrize("key", RULES)
def test_every_rule_has_bounds_around_its_default_and_words(key: str) -> None:
    rule = RULES[key]
    setting = rule.setting()
    assert rule.low <= rule.threshold <= rule.high
    assert setting.verdict(setting.clear_at) == "good" and rule.clear_s > 0
    words = summary(key, "model llama", rule.threshold, rule.threshold)
    assert words.startswith(rule.title) and "model llama" in words and rule.remedy.endswith(".")


def test_the_documentation_has_every_rule_with_its_defaults() -> None:
    text = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    rows = {cells[1].strip("`"): cells for cells in lines if len(cells) == 9 and cells[1].startswith("`")}
    assert rows.keys() == RULES.keys()
    severities = {"warn": "warning", "bad": "critical"}
    for key, rule in RULES.items():
        _, _, _, _, limit, fires, resolves, severity, _ = rows[key]
        shown = rule.threshold * 100 if rule.unit == "share" else rule.threshold
        assert f"{shown:g}" in limit and severity == severities[rule.severity], key
        assert (fires, resolves) == tuple(_told(seconds) for seconds in (rule.for_s, rule.clear_s)), key
        assert f"### {rule.title}" in text or rule.title in text, key


def _told(seconds: float) -> str:
    return "at once" if not seconds else f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"

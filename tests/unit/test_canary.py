"""What a canary's sessions lead to: go on, promote, roll back; with numbers and a sentence."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.canary import Guardrails, Progress, Verdict, decide, judge
from controlplane.core.trial import Evidence, Session

ROOT = Path(__file__).parents[2]
GUARDRAILS = Guardrails(min_sessions=100, min_step_s=60)
LATER = Progress(stages=1, step_s=600, age_s=600)


def evidence(count: int, share: float = 0.5, *, seed: int = 1, canary: Any = None, main: Any = None) -> Evidence:
    """`count` sessions; `canary` and `main` are chances by the names of what may happen to a session."""
    chance = random.Random(seed)
    seen = []
    for _ in range(count):
        mine = chance.random() < share
        chances = (canary if mine else main) or {}
        happened = {name: chance.random() < each for name, each in chances.items()}
        seen.append(Session(mine, ttft_ms=chance.uniform(100, 200), itl_ms=30 if mine else 20, **happened))
    return Evidence().with_sessions(seen, share)


def verdict(found: Evidence, guardrails: Guardrails = GUARDRAILS, progress: Progress = LATER) -> Verdict:
    given = decide(found, guardrails, progress)
    assert json.loads(json.dumps(given.numbers)) == given.numbers
    assert given.sentence.endswith(".") and "\n" not in given.sentence
    assert judge(found, guardrails, progress).action == given.action
    return given


def test_before_anything_was_seen_it_waits() -> None:
    given = verdict(Evidence())
    assert (given.action, given.because) == ("continue", "sessions")
    assert given.sentence == "Waiting for sessions: 0 of 100 were seen in each arm."


def test_a_canary_that_is_no_worse_is_promoted() -> None:
    given = verdict(evidence(3000, canary={"over": 0.02}, main={"over": 0.02}))
    assert (given.action, given.because) == ("promote", "no_worse")
    assert given.numbers["difference"]["upper"] <= 0.03
    assert given.sentence.startswith("Promoted: ") and "the difference is at most" in given.sentence


def test_a_canary_that_is_worse_is_rolled_back() -> None:
    given = verdict(evidence(200, canary={"over": 0.5}, main={"over": 0.05}))
    assert (given.action, given.because) == ("roll_back", "over")
    assert given.numbers["difference"]["lower"] > 0
    assert "of the canary's sessions" in given.sentence and given.sentence.endswith("the canary is worse.")


def test_a_few_sessions_promote_nothing_however_well_they_went() -> None:
    given = verdict(evidence(90))
    assert (given.action, given.because) == ("continue", "sessions")


def test_a_step_lasts_as_long_as_it_must() -> None:
    found = evidence(3000, canary={"over": 0.02}, main={"over": 0.02})
    given = verdict(found, progress=Progress(1, 20, 20))
    assert (given.action, given.because) == ("continue", "time_in_step")
    assert given.sentence.endswith("this step lasts 40 s more.")


def test_a_small_difference_is_left_open() -> None:
    given = verdict(evidence(600, canary={"over": 0.12}, main={"over": 0.1}))
    assert (given.action, given.because) == ("continue", "undecided")
    lower, upper = given.numbers["difference"]["lower"], given.numbers["difference"]["upper"]
    assert lower < 0 < upper and "between" in given.sentence


def test_what_is_not_shown_in_time_is_rolled_back() -> None:
    found = evidence(600, canary={"over": 0.12}, main={"over": 0.1})
    given = verdict(found, progress=Progress(1, 600, GUARDRAILS.max_duration_s))
    assert (given.action, given.because) == ("roll_back", "time")
    assert "after 4.0 h it is not shown" in given.sentence


@pytest.mark.parametrize("measure", ["failed", "kv_lost"])
def test_failures_beyond_the_guardrail_roll_back(measure: str) -> None:
    given = verdict(evidence(600, canary={measure: 0.2}))
    assert (given.action, given.because) == ("roll_back", measure)
    assert "0 of" in given.sentence


def test_failures_that_both_arms_have_roll_nothing_back() -> None:
    given = verdict(evidence(2000, canary={"failed": 0.2}, main={"failed": 0.2}))
    assert given.action != "roll_back"


def test_a_canary_that_main_must_serve_is_rolled_back() -> None:
    given = verdict(evidence(400, canary={"fell_back": 0.5}))
    assert (given.action, given.because) == ("roll_back", "fallback")
    assert given.sentence.endswith("had to be served by main, at most 10% may.")


def test_a_canary_whose_engines_are_gone_is_rolled_back() -> None:
    given = verdict(evidence(400), progress=Progress(1, 600, 600, absent_s=301))
    assert (given.action, given.because) == ("roll_back", "absent")
    assert given.sentence == "Rolled back: for 5 min the canary had no ready engine that its mode needs."


def test_sessions_that_main_had_to_serve_are_compared_with_nothing() -> None:
    found = Evidence().with_sessions([Session(True, over=True, fell_back=True), Session(False), Session(True)], 0.5)
    assert (found.canary.sessions, found.canary.over, found.canary.fell_back, found.main.sessions) == (1, 0, 1, 1)
    assert sum(found.step("over").values()) == 1


def test_what_was_well_in_an_earlier_step_does_not_promote_the_next() -> None:
    found = evidence(3000, canary={"over": 0.02}, main={"over": 0.02}).next_step()
    assert verdict(found, progress=Progress(2, 600, 1200)).because == "sessions"
    worse = found.with_sessions([Session(True, over=True), Session(False)] * 20, 0.5)
    assert verdict(worse, progress=Progress(2, 600, 1200)).because == "over"


def test_a_load_that_rises_while_the_share_does_is_no_harm() -> None:
    calm = evidence(4000, 0.05, canary={"over": 0.01}, main={"over": 0.01})
    chance = random.Random(3)
    busy = [Session(chance.random() < 0.5, over=chance.random() < 0.3) for _ in range(4000)]
    both = calm.next_step().with_sessions(busy, 0.5)
    mine, others = both.canary, both.main
    assert mine.over / mine.sessions > 1.5 * others.over / others.sessions  # added up it looks much worse
    assert verdict(both, progress=Progress(2, 600, 1200)).action != "roll_back"


def test_the_slowest_are_shown() -> None:
    numbers = verdict(evidence(2000)).numbers
    assert numbers["canary"]["itl_p99_ms"] == pytest.approx(30, rel=0.02)
    assert numbers["main"]["ttft_p99_ms"] == pytest.approx(199, rel=0.02)
    assert verdict(Evidence()).numbers["main"]["ttft_p99_ms"] is None


@given(
    st.lists(st.builds(Session, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())), st.floats(0, 1)
)
def test_evidence_survives_being_stored(seen: list[Session], share: float) -> None:
    found = Evidence().with_sessions(seen, share)
    assert Evidence.read(json.loads(json.dumps(found.written()))) == found


@given(st.lists(st.builds(Session, st.booleans(), st.booleans()), max_size=60), st.integers(0, 60))
def test_it_does_not_matter_in_how_many_looks_sessions_come(seen: list[Session], cut: int) -> None:
    at_once = Evidence().with_sessions(seen, 0.5)
    in_two = Evidence().with_sessions(seen[:cut], 0.5).with_sessions(seen[cut:], 0.5)
    assert (in_two.canary, in_two.main) == (at_once.canary, at_once.main)
    assert sum(in_two.step("over").values()) <= sum(at_once.step("over").values())


def test_guardrails_are_read_and_refused_in_words() -> None:
    assert Guardrails.read({}) == Guardrails()
    assert Guardrails.read({"margin": 0.1, "min_sessions": 20}) == Guardrails(margin=0.1, min_sessions=20)
    wrong: Any
    for wrong in ({"margin": 0}, {"margin": "much"}, {"min_sessions": 2.5}, {"speed": 1}, [], {"settle_s": -1}):
        with pytest.raises(ValueError, match="guardrail"):
            Guardrails.read(wrong)


def test_simulated_canaries_keep_the_limits() -> None:
    only = ("--only", "A/A", "--only", "ITL x 2")
    options = ("--canaries", "15", "--requests", "60000", "--seed", "5", *only)
    command = [sys.executable, "manage.py", "bench", "canary", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A/A: 15 canaries: 15 promoted" in done.stdout
    assert "found within 2,000 requests: 3 of 3" in done.stdout

"""What `prove-planner` finds: it holds only where the planner changed the split after the shift, and nothing was lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.proof.shift import PHASES, MinuteSeen, Shifted
from controlplane.proof.shiftcommand import _parse

DONE = {"at_s": 317.2, "what": "4:2 → 2:4", "state": "done", "seconds": 58.9, "why": "The split does not suit the traffic."}
FOUND = Shifted(
    seed=7,
    seconds=612.0,
    shifted_at_s=150.0,
    target_ttft_ms=4000.0,
    minutes=[MinuteSeen(4.5, 156.0, 2059.0, 107.0, "4:2"), MinuteSeen(64.5, None, None, None, "2:4")],
    changes=[DONE],
    holds=[{"at_s": 15.5, "code": "good", "reason": "It keeps its targets."}],
    requests=999,
    lost=0,
    skipped=0,
    losses=[],
    problems=[],
)


def test_a_run_is_told_minute_by_minute_and_summed_up() -> None:
    lines = FOUND.lines()
    assert lines[1].split() == ["1", "2.60", "2,059", "ms", "107", "ms", "4:2"]
    assert lines[2].split() == ["2", "-", "-", "-", "2:4"]
    assert "at 317 s: 4:2 → 2:4: done (The split does not suit the traffic.)" in lines
    assert lines[-1] == (
        "it holds: 1 change by the planner, the mix shifted at 150 s; 999 requests, 0 lost, 0 not sent (--seed 7)"
    )
    document = FOUND.as_json()
    assert document["holds"] is True and document["minutes"][0]["arrived"] == 156.0
    assert document["planner_held"] == FOUND.holds


@pytest.mark.parametrize(
    "other",
    [
        {"lost": 1},
        {"skipped": 1},
        {"requests": 0},
        {"problems": ["table 0:7 has no ready decode engine"]},
        {"changes": []},
        {"changes": [{**DONE, "at_s": 149.0}]},
        {"changes": [{**DONE, "state": "rolled_back"}]},
    ],
)
def test_it_does_not_hold_if_anything_was_lost_or_the_planner_did_not_answer(other: dict[str, Any]) -> None:
    found = replace(FOUND, **other)
    assert not found.holds_true and found.lines()[-1].startswith("it does not hold: ")


def test_its_load_shifts_once_and_covers_the_whole_run() -> None:
    assert sum(phase.share for phase in PHASES) == 1
    long, short = PHASES
    assert long.words[0] > short.words[1] and long.answer[1] < short.answer[0]


@pytest.mark.parametrize("wrong", ["0", "241", "many", "-1"])
def test_minutes_that_cannot_be_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(["--minutes", wrong])
    assert "is no number from 1 to 240" in capsys.readouterr().err
    assert _parse([]).minutes == 10

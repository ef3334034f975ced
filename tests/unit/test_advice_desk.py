"""The advisor's desk: questions one after the other in processes of their own, a bounded queue, nothing kept for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.physics import advicedesk
from controlplane.physics.advicedesk import MAX_WAITING, Desk, DeskFull, Seen
from controlplane.physics.advicequestion import Question, answer

QUESTION = Question(
    gpus=16, gpu="h100-sxm", network_gbps=400, model="qwen3-8b", input_tokens=2000, output_tokens=200, seeds=0
)


class Process:
    """Stands for the process that computes: says what it is given, once it may."""

    def __init__(self, *lines: list[Any]) -> None:
        self.lines, self.may, self.asked, self.ended = lines, threading.Event(), 0, 0

    def __call__(self, module: str, question: str, within_s: float) -> Generator[Any]:
        self.asked += 1
        try:
            for line in self.lines:
                yield line
                self.may.wait(60)
        finally:
            self.ended += 1


def eventually(desk: Desk, id: str, state: str) -> Seen:
    deadline = time.monotonic() + 120
    while (seen := desk.seen(id)) is None or seen.state != state:
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    return seen


def use(monkeypatch: pytest.MonkeyPatch, process: Process) -> Process:
    monkeypatch.setattr(advicedesk, "answers", process)
    return process


def test_a_question_is_answered_by_a_process_of_its_own() -> None:
    desk = Desk()
    first = desk.ask(QUESTION)
    assert first.advice is None and not first.over
    done = eventually(desk, first.id, "done")
    assert done.advice and done.advice["inputs"]["seeds"] == 0 and not done.reason
    assert desk.ask(QUESTION) is done, "it is not computed again"


def test_the_closed_form_is_there_while_it_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["closed", {"a": 1}], ["progress", {"what": "simulating x", "share": 0.5}], ["final", {"a": 2}]
    process, desk = use(monkeypatch, Process(*lines)), Desk()
    id = desk.ask(QUESTION).id
    deadline = time.monotonic() + 60
    while not (desk.ask(QUESTION)).advice:
        assert time.monotonic() < deadline
    assert desk.ask(QUESTION).state == "working" and desk.ask(QUESTION).advice == {"a": 1}
    process.may.set()
    done = eventually(desk, id, "done")
    assert done.advice == {"a": 2} and done.what == "" and done.share is None and process.asked == 1


def test_questions_wait_in_turn_and_too_many_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process, desk = use(monkeypatch, Process(["final", {}])), Desk()
    first = desk.ask(QUESTION).id
    eventually(desk, first, "done")
    waiting = [desk.ask(replace(QUESTION, gpus=gpus)) for gpus in range(17, 17 + MAX_WAITING)]
    assert [seen.ahead for seen in waiting] == list(range(MAX_WAITING))
    with pytest.raises(DeskFull, match="ask again"):
        desk.ask(replace(QUESTION, gpus=99))
    assert desk.ask(replace(QUESTION, gpus=17)).state == "waiting", "one that waits may be asked for"
    process.may.set()
    for seen in waiting:
        eventually(desk, seen.id, "done")
    assert process.asked == process.ended == 1 + MAX_WAITING


def test_a_process_that_dies_leaves_the_closed_form_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process, desk = use(monkeypatch, Process(["closed", {"a": 1}])), Desk()
    process.may.set()
    done = eventually(desk, desk.ask(QUESTION).id, "failed")
    assert done.advice == {"a": 1} and "closed form" in done.reason
    desk.ask(QUESTION)
    eventually(desk, done.id, "failed")
    assert process.asked == 2
    use(monkeypatch, Process())
    failed = eventually(desk, desk.ask(replace(QUESTION, gpus=17)).id, "failed")
    assert "Ask again" in failed.reason


def test_what_nobody_asks_for_any_more_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["closed", {}], ["progress", {"what": "simulating x", "share": 0.1}], ["final", {}]
    process, desk = use(monkeypatch, Process(*lines)), Desk()
    desk.ask(QUESTION)
    waits = desk.ask(replace(QUESTION, gpus=17)).id
    deadline = time.monotonic() + 60
    while not process.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(advicedesk, "ASKED_S", -1.0)
    process.may.set()
    while process.ended < 1 or desk.seen(waits) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.asked == 1, "the one that waited was never begun"


def test_answers_are_kept_for_the_newest_questions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advicedesk, "KEPT", 2)
    use(monkeypatch, Process(["final", {}])).may.set()
    desk = Desk()
    ids = [eventually(desk, desk.ask(replace(QUESTION, gpus=gpus)).id, "done").id for gpus in range(16, 20)]
    assert desk.seen(ids[0]) is None and desk.seen(ids[-1]) is not None


def test_a_question_keeps_its_id_through_its_json() -> None:
    again = Question.from_json(QUESTION.to_json())
    assert again == QUESTION and again.id == QUESTION.id != replace(QUESTION, gpus=17).id


def test_light_traffic_that_no_simulation_can_saturate_is_told_in_closed_form() -> None:
    told: list[tuple[str, Any]] = []
    light = replace(QUESTION, model="qwen3-0.6b", gpus=2, input_tokens=1, output_tokens=2, slo_ttft_ms=1e6, seeds=1)
    answer(light, lambda kind, value: told.append((kind, value)))
    kinds = [kind for kind, _ in told if kind != "progress"]
    assert kinds == ["closed", "unsimulated"] and "give a tighter target" in told[-1][1]


def test_what_cannot_be_is_refused_in_one_line() -> None:
    told: list[tuple[str, Any]] = []
    answer(replace(QUESTION, config={"architectures": ["No"]}), lambda kind, value: told.append((kind, value)))
    assert [kind for kind, _ in told] == ["refused"] and "\n" not in told[0][1]

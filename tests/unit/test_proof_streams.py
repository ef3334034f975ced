"""What `prove-rebalance` asks, and how it tells an exact answer from a lost one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from controlplane.proof.questions import LONGEST_TOKENS, SHORTEST_TOKENS, Question, question, simulated_questions
from controlplane.proof.replies import Reply, judge
from controlplane.proof.schedule import MODES, schedule

ASKED = question("m", {"prompt": "p"}, 4, "one two three four")
PIECES = ("one", " two", " three", " four")


def events(pieces: Iterable[str] = PIECES, tokens: int = 4, finish: str = "length") -> Iterator[str]:
    for piece in pieces:
        yield json.dumps({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})
    yield json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": finish}]})
    yield json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})
    yield "[DONE]"


def reply(told: Iterable[str], status: str = "200 OK", ends: bool = True) -> Reply:
    body = "".join(f"data: {event}\n\n" for event in told).encode()
    read = Reply()
    read.feed(f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    for at in range(0, len(body), 7):  # events come in pieces
        piece = body[at : at + 7]
        read.feed(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    if ends:
        read.feed(b"0\r\n\r\n")
    return read


def outcome(told: Iterable[str], asked: Question = ASKED, **how: object) -> str:
    return judge(asked, reply(told, **how)).outcome  # type: ignore[arg-type]


def test_the_expected_text_with_a_proper_end_is_exact() -> None:
    assert outcome(events()) == "exact"


def test_a_chat_is_read_like_a_completion() -> None:
    asked = question("m", {"messages": []}, 1, "hi")
    said = [
        json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}),
        json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "length"}]}),
        json.dumps({"choices": [], "usage": {"completion_tokens": 1}}),
        "[DONE]",
    ]
    assert outcome(said, asked) == "exact"


@pytest.mark.parametrize(
    ("told", "is_"),
    [
        (list(events(PIECES[:3])), "truncated"),
        (list(events())[:-1], "truncated"),
        (list(events((*PIECES[:2], *PIECES[1:]))), "duplicated"),
        (list(events(("one", " two", " one", " two"))), "duplicated"),
        (list(events(("one", " two", " six", " four"))), "wrong"),
        (list(events(tokens=5)), "wrong"),
        (list(events(finish="stop")), "wrong"),
        ([*list(events())[:-2], *list(events())[-3:]], "duplicated"),
        ([*events(), "{}"], "wrong"),
        (["no json"], "wrong"),
        ([*list(events())[:2], json.dumps({"error": {"message": "lost"}})], "failed"),
    ],
)
def test_anything_else_that_ends_in_order_is_a_loss(told: list[str], is_: str) -> None:
    assert outcome(told) == is_


def test_a_broken_connection_is_a_failure_unless_its_text_is_wrong() -> None:
    assert outcome(list(events())[:2], ends=False) == "failed"
    assert outcome(list(events(("one", " six")))[:2], ends=False) == "wrong"


def test_an_answer_of_another_status_is_refused() -> None:
    assert judge(ASKED, reply([], status="503 Service Unavailable")).outcome == "refused"
    assert judge(ASKED, Reply()).outcome == "refused"


def test_questions_are_repeatable_and_no_two_are_alike() -> None:
    one, other = (simulated_questions("m", 16, random.Random(3)) for _ in range(2))
    asked = [next(one) for _ in range(50)]
    assert asked == [next(other) for _ in range(50)]
    assert len({each.text for each in asked}) == 50
    assert all(SHORTEST_TOKENS <= each.tokens <= LONGEST_TOKENS for each in asked)
    assert {each.path for each in asked} == {"/v1/completions", "/v1/chat/completions"}


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_has_what_was_asked_for_and_every_change_changes_something(seed: int) -> None:
    changes = schedule(random.Random(seed), 6, 20, 20)
    assert Counter(each.verb for each in changes) == {"rebalance": 20, "set_mode": 20}
    mode, sizes = "disaggregated", {"prefill": 3, "decode": 3}
    for change in changes:
        assert sum(change.sizes.values()) == 6
        assert min(change.sizes.values()) >= 1
        if change.verb == "rebalance":
            assert (change.mode, mode != "monolithic", change.sizes != sizes) == (mode, True, True)
        else:
            assert change.mode != mode
            assert change.mode in MODES
        mode, sizes = change.mode, dict(change.sizes)


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="two pools"):
        schedule(random.Random(1), 2, 1, 0, "monolithic")


def test_two_engines_exchange_their_roles_in_place_of_a_rebalance() -> None:
    changes = schedule(random.Random(1), 2, 10, 4)
    assert Counter(each.verb for each in changes) == {"exchange": 10, "set_mode": 4}

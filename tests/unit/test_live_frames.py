"""Frames of the live socket: old rows + frames = the rows of a new snapshot."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.control.actor import TOPICS, Actor, may_follow
from controlplane.live.frames import BadState, Frame, State, read
from controlplane.live.messages import BadMessage, subscription
from controlplane.live.reader import Follow
from controlplane.telemetry.topics import ALWAYS, group

rows = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6).map(
    lambda found: [{"id": id, "type": "x", "value": value} for id, value in found.items()]
)


def state(seq: int, of: list[dict[str, Any]], epoch: str = "e1") -> State:
    return State("fleet", epoch, seq, 1000.5 + seq, orjson.dumps(of))


class Page:
    """What a client keeps: applies frames as the contract says."""

    def __init__(self) -> None:
        self.seq = 0
        self.rows: dict[str, Any] = {}

    def apply(self, text: str) -> None:
        frame = json.loads(text)
        if frame["kind"] == "snapshot":
            self.rows = {}
        else:
            assert frame["seq"] == self.seq + 1
        self.seq = frame["seq"]
        for row in frame["rows"]:
            if row["type"] == "gone":
                del self.rows[row["id"]]
            else:
                self.rows[row["id"]] = row


@given(st.lists(st.tuples(rows, st.booleans(), st.sampled_from(["e1", "e1", "e1", "e2"])), min_size=1, max_size=12))
def test_old_rows_and_frames_are_the_rows_of_a_new_snapshot(steps: list[tuple[list[dict[str, Any]], bool, str]]) -> None:
    """Whatever changes, whatever frame a slow reader or the hub itself misses, and if numbers begin anew."""
    page, sent, before = Page(), None, None
    for seq, (now, missed, epoch) in enumerate(steps, start=1):
        frame = Frame(state(seq, now, epoch), before)
        if not missed:
            page.apply(frame.after(sent))
            sent = frame.stamp
            fresh = Page()
            fresh.apply(frame.snapshot)
            assert (page.rows, page.seq) == (fresh.rows, fresh.seq)
        before = None if missed and seq % 3 == 0 else frame.state


def test_a_frame_has_the_rows_that_changed_and_names_those_that_are_gone() -> None:
    old = state(1, [{"id": "a", "v": 1}, {"id": "b", "v": 1}, {"id": "c", "v": 1}])
    frame = Frame(state(2, [{"id": "a", "v": 1}, {"id": "b", "v": 2}, {"id": "d", "v": 1}]), old)
    assert json.loads(frame.after(("e1", 1))) == {
        "topic": "fleet",
        "seq": 2,
        "at": 1002.5,
        "kind": "rows",
        "rows": [{"id": "b", "v": 2}, {"id": "d", "v": 1}, {"id": "c", "type": "gone"}],
    }


def test_a_frame_is_encoded_once_for_all_readers() -> None:
    frame = Frame(state(2, []), state(1, []))
    assert frame.after(("e1", 1)) is frame.after(("e1", 1))
    assert frame.after(None) is frame.after(("e1", 0))


def test_what_ingest_did_not_write_is_no_state() -> None:
    assert read("fleet", [None, None, None, None]) is None
    for values in (
        [b"e", b"x", b"1", b"[]"],
        [b"e", b"1", b"1", b"{"],
        [b"e", b"1", b"1", b"[{}]"],
        [b"e", b"1", b"1", b"3"],
    ):
        with pytest.raises(BadState):
            read("fleet", values)


def test_a_subscription_names_topics_once() -> None:
    assert subscription('{"subscribe": ["fleet", "model:org/llama 3", "fleet"]}') == ["fleet", "model:org/llama 3"]
    assert subscription('{"subscribe": []}') == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_message"),
        ("[]", "bad_message"),
        ('{"subscribe": "fleet"}', "bad_message"),
        ('{"subscribe": [1]}', "bad_message"),
        ('{"subscribe": ["' + '","'.join("abcdefghijklmnopqrstuvwxyz0123456789") + '"]}', "too_many_topics"),
        ('{"subscribe": ["fleet", "operation:0"]}', "unknown_topic"),
        ('{"subscribe": ["model:"]}', "unknown_topic"),
        ('{"subscribe": ["model:a\\u0000"]}', "unknown_topic"),
    ],
)
def test_other_messages_are_refused(text: str, code: str) -> None:
    with pytest.raises(BadMessage) as refused:
        subscription(text)
    assert refused.value.code == code


def test_a_topic_gets_one_frame_a_second_and_jitter_costs_none() -> None:
    follow, sent = Follow(), []
    for tick in range(400):
        now = 100 + tick * 0.05
        if now >= follow.due_at:
            follow.note_sent(("e", tick), now)
            sent.append(now)
    assert 20 <= len(sent) <= 22
    steady, taken = Follow(), 0
    for second in range(20):
        now = 100 + second + (0.2 if second % 2 else 0.0)
        if now >= steady.due_at:
            steady.note_sent(("e", second), now)
            taken += 1
    assert taken == 20


@pytest.mark.parametrize("stall_s", [0.3, 0.9, 1.6, 7.5])
def test_frames_after_a_stall_are_not_late(stall_s: float) -> None:
    """Made once a second; the process cannot send anything in between 5 and 5 + `stall_s`."""
    follow, late = Follow(), []
    for made in range(30):
        sent_at = max(float(made), follow.due_at)
        if 5 <= sent_at < 5 + stall_s:
            sent_at = 5 + stall_s
        if sent_at < made + 1:  # else the next one takes its place
            follow.note_sent(("e", made), sent_at)
            late.append((made, sent_at - made))
    assert [delay for made, delay in late if made > 6 + stall_s] == [0.0] * sum(made > 6 + stall_s for made, _ in late)
    assert late[-1][0] == 29


def test_every_kind_of_topic_has_a_rule_of_who_may_follow_it() -> None:
    assert TOPICS.keys() == {*ALWAYS, "model", "operation"}
    viewer = Actor("viewer", "viewer")
    assert all(may_follow(viewer, topic) for topic in (*ALWAYS, "model:org/llama", "operation:12"))
    assert not may_follow(Actor("root", "admin"), "secrets:12")


def test_every_topic_has_a_group_that_the_channel_layer_takes() -> None:
    assert group("fleet") == "live.fleet"
    assert group("model:llama-3.1-70b") == "live.model.llama-3.1-70b"
    odd = group("model:org/llama " + "x" * 110)
    assert odd.startswith("live.x.")
    assert len(odd) < 100
    assert odd != group("model:org/llama " + "x" * 109)

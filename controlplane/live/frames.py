"""Frames of the live socket: the state of a topic, and what changed since the one before. Pure; text is made once per frame.

`{"topic", "seq", "at", "kind": "snapshot" | "rows", "rows"}`. A snapshot replaces everything a reader has of the topic. A
rows frame goes on from the frame with seq - 1: each row replaces the row of its id, `{"id", "type": "gone"}` removes it. So
old rows + frames = the rows of a new snapshot. `at` is when ingest made the rows, Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

Row = dict[str, Any]


class BadState(ValueError):
    """What is stored for a topic is not what ingest writes."""


@dataclass(frozen=True)
class State:
    """A topic as ingest wrote it. Sequence numbers only compare within one epoch."""

    topic: str
    epoch: str
    seq: int
    at: float
    rows_json: bytes

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {row["id"]: row for row in orjson.loads(self.rows_json)}


@dataclass(frozen=True)
class Frame:
    """The newest state, and the one that was read before it."""

    state: State
    before: State | None = None

    @property
    def stamp(self) -> tuple[str, int]:
        return (self.state.epoch, self.state.seq)

    @cached_property
    def snapshot(self) -> str:
        return _text(self.state, "snapshot", self.state.rows_json)

    @cached_property
    def rows(self) -> str | None:
        """The changes since the state with seq - 1; None when that one was not seen."""
        before, now = self.before, self.state
        if before is None or (before.epoch, before.seq) != (now.epoch, now.seq - 1):
            return None
        return _text(now, "rows", orjson.dumps(changes(before.rows, now.rows)))

    def after(self, stamp: tuple[str, int] | None) -> str:
        """What to send to a reader that was sent the frame of `stamp` last (None: nothing yet)."""
        if stamp == (self.state.epoch, self.state.seq - 1) and self.rows is not None:
            return self.rows
        return self.snapshot


def changes(before: Mapping[str, Row], now: Mapping[str, Row]) -> list[Row]:
    """Rows that are new or differ, whole, then those that are gone."""
    changed = [row for id, row in now.items() if before.get(id) != row]
    return changed + [{"id": id, "type": "gone"} for id in before if id not in now]


def read(topic: str, values: Sequence[Any]) -> State | None:
    """The state in the fields epoch, seq, at, rows of a topic's hash; None when there is none. Raises BadState."""
    epoch, seq, at, rows = values
    if epoch is None or seq is None or at is None or rows is None:
        return None
    try:
        state = State(topic, epoch.decode(), int(seq), float(at), rows)
        state.rows  # noqa: B018  # decodes the rows, so that a bad state is refused here
    except (ValueError, TypeError, KeyError) as error:
        raise BadState(f"the state of topic {topic} cannot be read: {type(error).__name__}") from error
    return state


def error(code: str, message: str, **more: str) -> str:
    """An error frame: `{"error": code, "message": …}`, with the topic it is about where there is one."""
    return orjson.dumps({"error": code, "message": message, **more}).decode()


def _text(state: State, kind: str, rows_json: bytes) -> str:
    head = orjson.dumps({"topic": state.topic, "seq": state.seq, "at": state.at, "kind": kind})
    return (head[:-1] + b',"rows":' + rows_json + b"}").decode()

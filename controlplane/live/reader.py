"""What one socket follows, and when it may get the next frame. No I/O; times are seconds of a monotonic clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

FRAME_EVERY_S = 1.0
AHEAD_S = 1.0
"""Frames come once a second on average: one that was late lets the next come that much sooner. Otherwise all that follow,
which are made once a second, would be as late for ever."""


@dataclass
class Follow:
    """One topic of one reader."""

    sent: tuple[str, int] | None = None
    """Stamp of the frame sent last; None: a snapshot is owed."""
    due_at: float = 0.0

    def note_sent(self, stamp: tuple[str, int], now: float) -> None:
        self.sent = stamp
        self.due_at = max(self.due_at, now - AHEAD_S) + FRAME_EVERY_S


@dataclass(eq=False)
class Reader:
    """`wake` is set when a topic may have something to send. A reader that is slow finds only the newest then."""

    topics: dict[str, Follow] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

"""What one socket follows, and when it may get the next frame. No I/O; times are seconds of a monotonic clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

FRAME_EVERY_S = 1.0
JITTER_S = 0.25
"""Frames come once a second, not to the millisecond: one that much too early is let through, the average stays."""


@dataclass
class Follow:
    """One topic of one reader."""

    sent: tuple[str, int] | None = None
    """Stamp of the frame sent last; None: a snapshot is owed."""
    due_at: float = 0.0

    def note_sent(self, stamp: tuple[str, int], now: float) -> None:
        self.sent = stamp
        self.due_at = max(self.due_at, now - JITTER_S) + FRAME_EVERY_S


@dataclass(eq=False)
class Reader:
    """`wake` is set when a topic may have something to send. A reader that is slow finds only the newest then."""

    topics: dict[str, Follow] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

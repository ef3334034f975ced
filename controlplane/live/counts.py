"""What the live sockets of this process have done. Counted on the event loop alone, read by whoever asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class LiveCounts:
    open: int = 0
    frames: int = 0
    frame_bytes: int = 0
    """Characters; nearly all are one byte each."""
    messages: int = 0
    """From clients."""
    closed: Counter[str] = field(default_factory=Counter)
    """By what ended them: client, one of our close codes, or error."""


counts = LiveCounts()

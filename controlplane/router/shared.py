"""Memory that the processes of one router share: a slot per process, which that process alone writes and all others read.

So there are no locks, and a process that is killed or stopped holds up nobody. What a slot says of engines and teams is a
list of keys (hashes) with a row of integers each; a reader that finds the list changing reads it a moment later. On a
machine that reorders writes a reader may see a row that is half new: its next look corrects that.
"""

from __future__ import annotations

import mmap
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum

from controlplane.core.ratelimit import CELLS

ENGINES = 1024
"""Those beyond are counted by each process for itself."""
TEAMS = 512
LOAD_CELLS = 5
"""Legs in flight, reserved prompt tokens, expected output tokens, KV tokens, tokens produced ever."""
RING_WORDS = 1 << 16
"""Of prefixes that engines were sent lately."""
PAGE_BYTES = 4 << 20


class At(IntEnum):
    """Words of a slot's head."""

    LIVE = 0
    """The process id; 0: there is none."""
    ENGINES_CHANGE = 1
    """Odd while the list of engines changes."""
    ENGINES_USED = 2
    TEAMS_CHANGE = 3
    TEAMS_USED = 4
    RING_BEGUN = 5
    """Words ever written to the ring, those being written included."""
    RING_DONE = 6
    PAGE_LENGTH = 7
    PAGE_CRC = 8


HEAD_WORDS = 16
_PARTS = (HEAD_WORDS, ENGINES, ENGINES * LOAD_CELLS, TEAMS, TEAMS * CELLS, RING_WORDS, PAGE_BYTES // 8)
SLOT_BYTES = -(-sum(_PARTS) * 8 // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """Memory takes place only where something was written."""

    def __init__(self, descriptor: int, processes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, processes * SLOT_BYTES)
        self.slots = [Slot(memoryview(self._map)[n * SLOT_BYTES : (n + 1) * SLOT_BYTES]) for n in range(processes)]

    @classmethod
    def create(cls, processes: int) -> Segment:
        """A new one, which is gone when the last process that has it open ends. Linux."""
        descriptor = os.memfd_create("twinpool-router")
        os.ftruncate(descriptor, processes * SLOT_BYTES)
        return cls(descriptor, processes)


class Slot:
    def __init__(self, memory: memoryview) -> None:
        parts: list[memoryview] = []
        start = 0
        for words in _PARTS:
            parts.append(memory[start : start + words * 8])
            start += words * 8
        self.head = parts[0].cast("q")
        self.engine_keys = parts[1].cast("Q")
        self.loads = parts[2].cast("q")
        self.team_keys = parts[3].cast("Q")
        self.windows = parts[4].cast("q")
        self._ring = parts[5].cast("Q")
        self._page = parts[6]

    def process_died(self) -> None:
        """For its parent: nothing is reserved by it any more. What its teams used, what it sent and counted still holds."""
        self.head[At.LIVE] = 0
        self.head[At.ENGINES_CHANGE] = (self.head[At.ENGINES_CHANGE] | 1) + 1
        self.head[At.ENGINES_USED] = 0

    # --- prefixes ---

    def tell(self, key: int, hashes: Sequence[int]) -> None:
        """Appends (key, hashes) to the ring; the oldest are overwritten."""
        words = array("Q", (key, len(hashes), *hashes))
        size, begun = len(words), self.head[At.RING_BEGUN]
        place = begun % RING_WORDS
        if place + size > RING_WORDS:
            self._ring[place] = 0
            begun, place = begun + RING_WORDS - place, 0
        self.head[At.RING_BEGUN] = begun + size
        self._ring[place : place + size] = words
        self.head[At.RING_DONE] = begun + size

    def told(self, since: int) -> tuple[int, list[list[int]]]:
        """(until, words) of what was appended after `since`, where an entry began: in one piece, or in two if the ring went
        round. Nothing if a part of it is overwritten already."""
        until = self.head[At.RING_DONE]
        if until == since:
            return since, []
        first, last = since % RING_WORDS, until % RING_WORDS
        if first < last:
            pieces = [self._ring[first:last].tolist()]
        else:
            pieces = [self._ring[first:].tolist(), self._ring[:last].tolist()]
        whole = until > since and self.head[At.RING_BEGUN] - since <= RING_WORDS
        return until, pieces if whole else []

    def lap(self) -> int:
        """Where the newest words begin that can be read from the start."""
        done = self.head[At.RING_DONE]
        return done - done % RING_WORDS

    # --- the page of metrics ---

    def publish(self, page: bytes) -> bool:
        """False if it is too large, and the old one stays."""
        if len(page) > PAGE_BYTES:
            return False
        self.head[At.PAGE_LENGTH] = len(page)
        self._page[: len(page)] = page
        self.head[At.PAGE_CRC] = zlib.crc32(page)
        return True

    def page(self) -> bytes | None:
        """The last one published, whoever was the process; None if it is being written right now."""
        page = bytes(self._page[: self.head[At.PAGE_LENGTH]])
        return page if zlib.crc32(page) == self.head[At.PAGE_CRC] else None


def entries(words: list[int]) -> Iterator[tuple[int, list[int]]]:
    """(key, hashes) out of what `Slot.told` gave. Stops at what makes no sense."""
    at, end = 0, len(words)
    while at + 2 <= end:
        key, count = words[at], words[at + 1]
        if key == 0 or at + 2 + count > end:
            return
        yield key, words[at + 2 : at + 2 + count]
        at += 2 + count

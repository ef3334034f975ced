"""Waiting for operations: what order readings and watchers may come in."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from controlplane.api import watch
from controlplane.api.watch import Seen, Watcher


async def test_a_reading_that_had_begun_before_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    readings = iter(["old", "new", "newer"])

    def read(operations: Iterable[int]) -> dict[int, Seen]:
        tag = next(readings, "newer")
        if tag == "old":
            begun.set()
            assert go_on.wait(60)
        return {number: Seen(tag, b"", False) for number in operations}

    monkeypatch.setattr(watch, "_read", read)
    monkeypatch.setattr(watch, "EVERY_S", 0.0)
    watcher = Watcher()
    async with watcher.watching(1):
        while not begun.is_set():
            await watch.asyncio.sleep(0.001)
        async with watcher.watching(1) as since:
            go_on.set()
            assert await watcher.changed(1, "new", 60, since) == Seen("newer", b"", False), "it went back in time"

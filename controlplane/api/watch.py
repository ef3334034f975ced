"""Waiting for operations to change, for all who wait in this process together: one reader asks the rows of all watched
operations a few times a second, however many wait. A process that dies takes no state with it: whoever waited asks again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from controlplane.api.documents import OperationDocument
from controlplane.api.preconditions import tag_of
from controlplane.api.problems import Problem
from controlplane.api.rendering import encode
from controlplane.api.selectors import operations_with_steps
from controlplane.api.showing import show
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models

EVERY_S = 0.4
MAX_WAITING = 500
"""Of one process."""


class Seen(NamedTuple):
    """An operation at one time: its entity tag, its document as JSON, and whether it is over."""

    tag: str
    body: bytes
    ended: bool


class Watcher:
    """Lives in the event loop of the web process."""

    def __init__(self) -> None:
        self._watched: Counter[int] = Counter()
        self._newest: dict[int, Seen] = {}
        self._begun = self._done = 0
        """Readings begun, and the one that `_newest` is of."""
        self._read = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="watch-operations")

    @asynccontextmanager
    async def watching(self, operation: int) -> AsyncIterator[int]:
        """Within it `changed` may be asked for, with the number that it gives: a reading that had begun before may show the
        operation as it was before the caller looked. Raises Problem if too many wait already."""
        self.refuse_if_full()
        self._watched[operation] += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._follow())
        try:
            yield self._begun
        finally:
            self._watched[operation] -= 1
            if not self._watched[operation]:
                del self._watched[operation]
                self._newest.pop(operation, None)

    def refuse_if_full(self) -> None:
        """Raises Problem."""
        if self._watched.total() >= MAX_WAITING:
            raise Problem(503, "unavailable", "Too many clients wait for operations here: ask without waiting.")

    async def changed(self, operation: int, seen: str, timeout_s: float, since: int) -> Seen | None:
        """What the operation is once its tag is another than `seen`; None if that does not come within `timeout_s`.
        `since`: as `watching` gave it."""

        def is_news() -> bool:
            return self._done > since and operation in self._newest and self._newest[operation].tag != seen

        try:
            async with asyncio.timeout(timeout_s), self._read:
                await self._read.wait_for(is_news)
                return self._newest[operation]
        except TimeoutError:
            return None

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watched:
            try:
                self._begun += 1
                found = await loop.run_in_executor(self._thread, _read, list(self._watched))
                self._newest = {operation: seen for operation, seen in found.items() if operation in self._watched}
                self._done = self._begun
            except (DatabaseError, InterfaceError):
                pass  # away for now: who waits is told nothing new
            async with self._read:
                self._read.notify_all()
            await asyncio.sleep(EVERY_S)
            if not self._watched:
                await loop.run_in_executor(self._thread, connections.close_all)


@cache
def watcher() -> Watcher:
    """This process's."""
    return Watcher()


def _read(operations: Iterable[int]) -> dict[int, Seen]:
    close_old_connections()
    return {row.pk: see(row) for row in operations_with_steps().filter(pk__in=operations)}


def see(row: models.Operation) -> Seen:
    document = show(OperationDocument, row)
    return Seen(tag_of(document), encode(document), row.state in ENDED)

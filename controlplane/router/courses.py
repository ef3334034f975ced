"""Runs a coroutine that begins at once and goes on in the very call that brings what it waits for: no task, no future and no
turn of the event loop lies between an engine's answer being read and what is made of it being written.

That holds while it waits for a `Pause` alone. When it awaits anything else (a timer, a new connection) a task takes it over
for the rest of its way; what is written as one coroutine stays one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Sign:
    """Awaited, it is what the coroutine's runner gets, who answers with a value."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


_PAUSED = _Sign()
_TO_TASK = _Sign()
_running: Course | None = None


class Course:
    """One such coroutine. `start` it once; it ends by itself, or soon after `cancel`."""

    __slots__ = ("_began", "_cancelled", "_coroutine", "_done", "_spawn", "_task")

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`spawn` makes the task that takes it over."""
        self._coroutine = work
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._began = False
        self._cancelled = False
        self._done = False

    def done(self) -> bool:
        return self._done

    def start(self) -> None:
        self._go(self._coroutine.send, None)

    def cancel(self) -> None:
        """Raises CancelledError where it waits."""
        if self._done:
            return
        if self._task is None:
            self._go(self._coroutine.throw, asyncio.CancelledError())
        elif self._began:
            self._task.cancel()
        else:
            self._cancelled = True  # a task that is cancelled before it has begun would never tell the coroutine

    def go_on(self, value: Any) -> None:
        """What a `Pause` waited for is there."""
        self._go(self._coroutine.send, value)

    def _go(self, step: Callable[[Any], Any], value: Any) -> None:
        global _running
        before, _running = _running, self
        try:
            waits_for = step(value)
        except StopIteration:
            self._done = True
        except asyncio.CancelledError:
            self._done = True
        except Exception:
            self._done = True
            log.exception("a course failed inside the router")
        else:
            if waits_for is not _PAUSED:
                self._task = self._spawn(self._rest(waits_for))
        finally:
            _running = before

    async def _rest(self, waits_for: Any) -> None:
        self._began = True
        try:
            await _taken_over(self._coroutine, waits_for, self._cancelled)
        finally:
            self._done = True


@coroutine
def _taken_over(work: Coroutine[Any, Any, None], waits_for: Any, cancelled: bool) -> Generator[Any, Any, None]:
    try:
        if cancelled:
            waits_for = work.throw(asyncio.CancelledError())
        elif waits_for is _TO_TASK:
            waits_for = work.send(None)
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  # a cancellation, which the coroutine may handle
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
    except StopIteration:
        return


async def in_task() -> None:
    """Awaited before something that only works inside a task, such as asyncio.timeout."""
    if _running is not None:
        await _TO_TASK


class Pause(Generic[T]):
    """Somebody waits here for something, again and again. What comes when nobody does is kept: the newest, not None."""

    __slots__ = ("_course", "_future", "_kept")

    def __init__(self) -> None:
        self._course: Course | None = None
        self._future: asyncio.Future[T] | None = None
        self._kept: T | None = None

    def left(self) -> None:
        """Whoever waited was cancelled."""

    def settle(self, value: T) -> None:
        """Whoever waits goes on with `value`: at once if it is a course. So this comes last in what a caller does."""
        course, future = self._course, self._future
        if course is not None:
            self._course = None
            course.go_on(value)
        elif future is None:
            self._kept = value
        elif not future.done():
            future.set_result(value)

    async def wait(self) -> T:
        value = self._kept
        if value is not None:
            self._kept = None
            return value
        try:
            if _running is not None:
                self._course = _running
                outcome: T = await _PAUSED
                return outcome
            self._future = asyncio.get_running_loop().create_future()
            return await self._future
        except asyncio.CancelledError:
            self.left()
            raise
        finally:
            self._course = self._future = self._kept = None

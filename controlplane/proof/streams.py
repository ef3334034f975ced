"""Keeps so many streams open at all times, each judged when it ends. One thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import httptools

from controlplane.proof.questions import Question
from controlplane.proof.replies import Reply, Verdict, judge

TIMEOUT_S = 120.0
"""A stream that takes longer has hung, which is a failure."""
PAUSE_AFTER_LOSS_S = 0.2


@dataclass(frozen=True)
class Loss:
    """A stream that was not exact. `at`: Unix seconds of its end."""

    at: float
    outcome: str
    why: str
    route: str
    request_id: str


class Streams:
    """`start`, then `finish` or `abandon`. Counts may be read at any time."""

    def __init__(self, host: str, port: int, questions: Iterator[Question], count: int) -> None:
        self.counts: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        """Exact streams by the path that the router told."""
        self.tokens = 0
        self.losses: list[Loss] = []
        self.open = 0
        self.longest_pause_s = 0.0
        self.first_bytes_s: list[float] = []
        self._host, self._port, self._questions, self._count = host, port, questions, count
        self._stop = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)

    @property
    def ended(self) -> int:
        return self.counts.total()

    @property
    def lost(self) -> int:
        return self.ended - self.counts["exact"]

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Begin none any more and wait for the ends of those that are open."""
        self._stop.set()
        self._thread.join()

    def abandon(self) -> None:
        """Leave what is open."""
        self._stop.set()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(10.0)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._all())
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _all(self) -> None:
        await asyncio.gather(*(self._one_after_another() for _ in range(self._count)))

    async def _one_after_another(self) -> None:
        while not self._stop.is_set():
            await self._one(next(self._questions))
            if self.losses and time.time() - self.losses[-1].at < PAUSE_AFTER_LOSS_S:
                await asyncio.sleep(PAUSE_AFTER_LOSS_S)  # a router that is away must not be asked a thousand times a second

    async def _one(self, question: Question) -> None:
        self.open += 1
        try:
            reply = await self._ask(question)
        finally:
            self.open -= 1
        self._note(question, reply, judge(question, reply))

    def _note(self, question: Question, reply: Reply, verdict: Verdict) -> None:
        self.counts[verdict.outcome] += 1
        route, name = (reply.headers.get(header, "") for header in ("x-twinpool-route", "x-request-id"))
        if verdict.outcome == "exact":
            self.tokens += question.tokens
            self.ways[route.partition(";")[0]] += 1
        else:
            self.losses.append(Loss(time.time(), verdict.outcome, verdict.why, route, name))

    async def _ask(self, question: Question) -> Reply:
        reply, began = Reply(), time.monotonic()
        last = began
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(question.request(f"{self._host}:{self._port}"))
                    while data := await reader.read(1 << 16):
                        now = time.monotonic()
                        if last == began:
                            self.first_bytes_s.append(now - began)
                        else:
                            self.longest_pause_s = max(self.longest_pause_s, now - last)
                        last = now
                        reply.feed(data)
                finally:
                    writer.close()
        except TimeoutError:
            reply.problem = f"no end after {TIMEOUT_S:.0f} s"
        except (OSError, httptools.HttpParserError) as error:
            reply.problem = f"{type(error).__name__}: {error}"
        return reply

"""Streams that arrive by chance, at a rate, however many are open: what a load is to a planner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from controlplane.proof.questions import Question
from controlplane.proof.streams import Streams

MOST_OPEN = 500
"""Beyond it an arrival is skipped and counted: the fleet has long been lost then."""


class Arrivals(Streams):
    """`rate` and `questions` may be set while it runs. `skipped`: arrivals that found MOST_OPEN streams open."""

    def __init__(self, host: str, port: int, questions: Iterator[Question], rate: float, chance: random.Random) -> None:
        super().__init__(host, port, questions, 1)
        self.rate = rate
        self.skipped = 0
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()

    def change(self, questions: Iterator[Question], rate: float) -> None:
        """From the next arrival on."""
        self._questions, self.rate = questions, rate

    async def _all(self) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(self._chance.expovariate(self.rate))
            if self.open >= MOST_OPEN:
                self.skipped += 1
                continue
            task = asyncio.create_task(self._one(next(self._questions)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

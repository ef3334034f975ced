"""What one second of a fleet costs ingest in processor time, part by part, whatever else the machine does.

The parts of the ingest process, on real PostgreSQL and Valkey, called one after the other for each second of the fleet, in
the stream's own time: so a second may take as long as it likes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from _telemetry import Fleet, Node
from redis import Redis

from controlplane.config import config
from controlplane.telemetry import fleet_view, live_rows, stream
from controlplane.telemetry.board import Board
from controlplane.telemetry.ingest import GC_THRESHOLDS
from controlplane.telemetry.intake import Intake, Refusals, position_time
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.publish import Publisher
from controlplane.telemetry.rollups import Rollups
from controlplane.telemetry.writer import Writer

SLICES = 20


class Work:
    def __init__(self, valkey: Redis, nodes: Sequence[Node], requests: int) -> None:
        self._fleet, self._requests = Fleet(valkey, nodes, virtual=True), requests
        self._engines = [id for node in nodes for id, _ in node.engines]
        self._models = sorted({model for node in nodes for _, model in node.engines})
        self._intake, self._board, self._rollups = Intake(Refusals()), Board(), Rollups()
        self._writer = Writer(Partitions(keep(config())))
        self._spent: Counter[str] = Counter()
        self._rows = 0
        self._now = float(int(time.time()))

    async def run(self, seconds: int, warm_up: int) -> None:
        """Prints milliseconds of processor time a second of the fleet."""
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        position = "0-0"
        async with stream.connect_async() as valkey:
            publisher = Publisher(valkey)
            for second in range(warm_up + seconds):
                if second == warm_up:
                    self._spent.clear()
                    self._rows = 0
                await asyncio.to_thread(self._send)
                position = await self._second(valkey, publisher, position)
        total = sum(self._spent.values()) / seconds
        for part, spent in self._spent.items():
            print(f"  {part:34} {spent / seconds * 1000:6.0f} ms")
        print(
            f"  {'a second of the fleet':34} {total * 1000:6.0f} ms: {total:.0%} of a core; {self._rows / seconds:,.0f} rows"
        )

    def _send(self) -> None:
        for place, part in enumerate(self._fleet.second(SLICES)):
            self._fleet.send(part, self._now + place / SLICES)
        self._now += 1.0
        self._fleet.requests(self._requests, self._models, self._engines, self._now - 0.01)

    async def _second(self, valkey: stream.AsyncRedis, publisher: Publisher, position: str) -> str:
        with self._counted("fleet read"):
            view = await asyncio.to_thread(fleet_view.read)
        samples = []
        while True:
            with self._counted("stream read"):
                entries = await stream.read_new(valkey, position, 1)
            if not entries:
                break
            position = entries[-1][0]
            with self._counted("records decoded and checked"):
                taken = self._intake.take(entries)
            with self._counted("live state"):
                for sample in taken.samples:
                    self._board.apply(sample, view)
            samples += taken.samples
        with self._counted("roll-ups"):
            for sample in samples:
                self._rollups.consume(sample, view)
            self._rollups.advance(position_time(position))
            batch = self._rollups.closed()
        self._rows += len(batch)
        if len(batch):
            with self._counted("rows written"):
                await asyncio.to_thread(self._writer.write, batch, position, position_time(position))
        with self._counted("live rows made"):
            topics = live_rows.topics(self._board, view, self._now)
        with self._counted("live rows published"):
            await publisher.publish(topics, self._now)
        return position

    @contextmanager
    def _counted(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self._spent[part] += time.process_time() - began

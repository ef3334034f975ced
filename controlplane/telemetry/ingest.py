"""The ingest process: follows the telemetry stream, publishes live rows every second, and has threads store the rest.

Every loop outlives its servers: while Valkey is away it waits with back-off, while PostgreSQL is away live rows go on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import Iterator

import redis
from django.conf import settings
from prometheus_client.metrics_core import Metric
from redis.asyncio import Redis

from controlplane.common.metrics import registry, serve
from controlplane.common.places import read_place
from controlplane.config import config
from controlplane.telemetry import live_rows, stream
from controlplane.telemetry.board import Board
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.intake import Intake, Refusals, Taken, position_time
from controlplane.telemetry.keeper import Keeper
from controlplane.telemetry.metrics import Following, ingest_series
from controlplane.telemetry.publish import Publisher
from controlplane.telemetry.traces import TraceQueue, is_usable
from controlplane.telemetry.upkeep import Upkeep
from controlplane.telemetry.view import FleetView
from controlplane.telemetry.windows import HORIZON_S

log = logging.getLogger(__name__)

PUBLISH_EVERY_S = 1.0
BLOCK_MS = 1000
CLOCK_EVERY_S = 10.0
FIRST_VIEW_WITHIN_S = 5.0
MAX_BACKOFF_S = 5.0
REPORT_EVERY_S = 60.0
LAST_TRACES_S = 0.5
GC_THRESHOLDS = (50_000, 20, 50)
UNREACHABLE = (redis.RedisError, OSError)


class Ingest:
    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._no_more_traces = threading.Event()
        """Will be put into their queue."""
        self._stop = asyncio.Event()
        self._buffer = Buffer()
        refusals = Refusals()
        self._traces = TraceQueue() if is_usable(config().traces_url) else None
        self._upkeep = Upkeep(self._stopped)
        self._keeper = Keeper(self._buffer, refusals, self._stopped, self._upkeep, self._traces)
        self._board = Board()
        self._intake = Intake(refusals)
        self._clock_offset_s = 0.0
        self._following = Following()
        self._caught_up = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises what no loop foresaw: the process must end then, not publish old news for ever."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        for thread in (self._upkeep, self._keeper):
            thread.start()
        sender = self._start_sender()
        # Records live for seconds and hold no cycles: looking through all of them often took a tenth of the process's time.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        if place := config().metrics:
            serve(read_place(place), registry(self._series))
        tasks = [asyncio.create_task(work) for work in (self._follow(), self._publish(), self._report(), self._watch())]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._stopped.set()
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(stopping, *tasks, return_exceptions=True)
            for thread in (self._upkeep, self._keeper):
                await asyncio.to_thread(thread.join, 5.0)
            self._no_more_traces.set()
            if sender is not None:
                await asyncio.to_thread(sender.join, LAST_TRACES_S)

    def _start_sender(self) -> threading.Thread | None:
        """What exports traces, if they are wanted."""
        if self._traces is None:
            return None
        from controlplane.telemetry.otlp import TraceSender  # only here: it takes 17 MB

        try:
            sender = TraceSender(self._traces, config().traces_url, self._no_more_traces)
        except (ValueError, OSError) as error:
            log.error("traces are not exported, correct the variables OTEL_EXPORTER_OTLP_...: %s", error)
            return None
        sender.start()
        return sender

    async def _watch(self) -> None:
        threads = (self._upkeep, self._keeper)
        while all(thread.is_alive() for thread in threads):  # noqa: ASYNC110  # the end of a thread cannot be awaited
            await asyncio.sleep(PUBLISH_EVERY_S)
        died = " and ".join(thread.does for thread in threads if not thread.is_alive())
        raise RuntimeError(f"the thread that {died} has died (its error is above)")

    def _series(self) -> Iterator[Metric]:
        return ingest_series(self._now(), self._following, self._intake, self._keeper, self._traces)

    def _now(self) -> float:
        """Unix seconds on the telemetry server's clock, the one that dates all samples."""
        return time.time() + self._clock_offset_s

    def _view(self) -> FleetView:
        return self._upkeep.view or FleetView()

    async def _follow(self) -> None:
        """Read the stream for ever; begin ten minutes ago, so that all windows are full at once."""
        await asyncio.to_thread(self._upkeep.seen.wait, FIRST_VIEW_WITHIN_S)
        position: str | None = None
        backoff_s = 0.0
        clock_at = 0.0
        async with stream.connect_async() as valkey:
            while True:
                try:
                    if position is None or time.monotonic() - clock_at > CLOCK_EVERY_S:
                        await self._read_clock(valkey)
                        clock_at = time.monotonic()
                    position = position or stream.position_at(self._now() - HORIZON_S)
                    position = await self._read_page(valkey, position)
                    backoff_s = 0.0
                except UNREACHABLE as error:
                    if not backoff_s:
                        log.warning("the telemetry stream cannot be read, waiting for it: %s", type(error).__name__)
                    backoff_s = min(backoff_s * 2 or 0.25, MAX_BACKOFF_S)
                    await asyncio.sleep(backoff_s)

    async def _read_clock(self, valkey: Redis) -> None:
        before = time.time()
        seconds, micros = await valkey.time()
        self._clock_offset_s = seconds + micros / 1e6 - (before + time.time()) / 2

    async def _read_page(self, valkey: Redis, position: str) -> str:
        entries = await stream.read_new(valkey, position, BLOCK_MS)
        if entries:
            position = entries[-1][0]
        full = len(entries) == stream.PAGE
        watermark = position_time(position) if entries else self._now() - BLOCK_MS / 1000
        taken = self._intake.take(entries)
        self._apply(taken)
        self._buffer.put(taken.samples, position, watermark)
        self._following.read_to = watermark
        if not full:
            self._caught_up.set()
        return position

    def _apply(self, taken: Taken) -> None:
        view = self._view()
        for sample in taken.samples:
            if self._board.spark_is_due(sample.received):
                live_rows.note_spark(self._board, live_rows.fleet_row(self._board, view, sample.received), sample.received)
            self._board.apply(sample, view)
        for at, count in taken.missing:
            self._board.missing(at, count)

    async def _publish(self) -> None:
        """Once a second, when the fleet was read once and the stream's history is in."""
        await self._caught_up.wait()
        failing = False
        due = time.monotonic()
        async with stream.connect_async(settings.VALKEY_URL) as valkey:
            publisher = Publisher(valkey)
            while True:
                due = max(due + PUBLISH_EVERY_S, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
                if (view := self._upkeep.view) is None:
                    continue
                now = self._now()
                topics = live_rows.topics(self._board, view, now)
                self._following.topics, self._following.published_at = topics, now
                try:
                    await publisher.publish(topics, now)
                    self._following.publications["done"] += 1
                    failing = False
                except UNREACHABLE as error:
                    if not failing:
                        log.warning("live rows cannot be published, trying on: %s", type(error).__name__)
                    self._following.publications["failed"] += 1
                    failing = True

    async def _report(self) -> None:
        """What was lost or refused, when there is something new to say."""
        told: tuple[int, int] = (0, 0)
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            counts = (self._intake.counts["missing"], self._intake.counts["refused"])
            if counts != told:
                log.info("telemetry since start: %d records missing, %d refused", *counts)
                told = counts

"""Reads from a prefill engine how many leases it has let expire: the proof that a late answer was made from the right KV."""

from __future__ import annotations

import asyncio
import math
import re
import time

from controlplane.router import legs
from controlplane.router.engines import Engine, ExpiryReading
from controlplane.router.limits import Limits
from controlplane.router.upstream import Fault

_SAMPLE = re.compile(rb"^vllm:nixl_num_kv_expired_reqs_total(?:\{[^\n]*\})?[ \t]+([^\s]+)", re.MULTILINE)

SHARED_S = 1.0
"""Requests that are slow together share one reading as their baseline, if it began at most this long ago."""
RETRY_S = 0.5


async def read(engine: Engine, limits: Limits) -> float | None:
    """The counter's value, or None if it cannot be read. Never raises for what an engine does."""
    collector = legs.Collector(limits.metrics_bytes)
    outcome = await legs.run(engine.pool, engine.get(b"/metrics"), collector, limits.metrics_s, limits)
    if isinstance(outcome, Fault) or outcome.status != 200:
        return None
    return parse(outcome.body)


def parse(page: bytes) -> float | None:
    """The sum of the counter over all its labels on a Prometheus page; None without a readable sample."""
    try:
        values = [float(value) for value in _SAMPLE.findall(page)]
    except ValueError:
        return None
    total = sum(values)
    return total if values and math.isfinite(total) else None  # what is no number never shows that it grew


class Baseline:
    """The counter from before one lease can have ended, taken only for requests that are slow.

    Nobody outside the engine sees when a lease begins: answers wait in buffers of processes that are stopped or starved,
    the engine's own as well as ours. So `deadline` counts from when the prefill leg was sent: surely earlier. A reading
    proves something only if its answer was here by then; it is taken at half of that time, and again until there is one.
    """

    def __init__(self, engine: Engine, leg_start: float, lease_s: float, limits: Limits) -> None:
        """`leg_start`: monotonic. Made inside a running loop; `cancel` it."""
        self.deadline = leg_start + lease_s
        self._engine = engine
        self._limits = limits
        self._value: float | None = None
        self._task: asyncio.Task[None] | None = None
        wait_s = leg_start + lease_s / 2 - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._begin)

    @property
    def value(self) -> float | None:
        """None if there is none that came in time."""
        return self._value

    def cancel(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        while self._value is None and time.monotonic() < self.deadline:
            reading = await asyncio.shield(_shared(self._engine, self._limits))
            if reading.value is not None and reading.came_at <= self.deadline:
                self._value = reading.value
            else:
                await asyncio.sleep(RETRY_S)


def _shared(engine: Engine, limits: Limits) -> asyncio.Task[ExpiryReading]:
    now = time.monotonic()
    known = engine.expiry_reading
    if known is None or now - known[0] > SHARED_S:
        known = engine.expiry_reading = (now, asyncio.get_running_loop().create_task(_timed(engine, limits)))
    return known[1]


async def _timed(engine: Engine, limits: Limits) -> ExpiryReading:
    value = await read(engine, limits)
    return ExpiryReading(value, time.monotonic())

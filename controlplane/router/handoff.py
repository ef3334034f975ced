"""KV that waits on a prefill engine for a decode engine to pull it, and whether a late answer may be believed."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from controlplane.core import routing
from controlplane.router import expiry
from controlplane.router.engines import Engine
from controlplane.router.ledger import End, Entry, Ledger
from controlplane.router.limits import Limits

BASELINE_SHARED_S = 1.0
"""Requests that are slow together share one reading of an engine's counter from before any of their leases could end."""


class Handoff:
    """`kv_params` goes verbatim into the decode leg. None: there is nothing to pull by parameters, and no lease: the
    connector keeps KV in a shared store, or the prefill left none."""

    def __init__(
        self, engine: Engine, kv_params: dict[str, Any] | None, prefill_end: float, lease_s: float, limits: Limits
    ) -> None:
        self.engine = engine
        self.kv_params = kv_params
        self.prefill_end = prefill_end
        """Monotonic."""
        self.lease_s = lease_s
        self.prompt_details: bytes | None = None
        """The prefill's prompt_tokens_details as JSON; None: the decode engine's own are right."""
        self._limits = limits
        self._ledger: Ledger | None = None
        self._entry: Entry | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._before: asyncio.Task[float | None] | None = None

    def enter(self, ledger: Ledger, request: str, size: int) -> None:
        """Opens its entry in the ledger. Without parameters no engine holds anything for it."""
        if self.kv_params is not None:
            self._ledger = ledger
            route = self.engine.route
            self._entry = ledger.open(request, route.id, route.incarnation, size, self.lease_s, time.time())

    def decode_starts(self, decode: str) -> None:
        """Arms the reading of the expiry counter at half of the lease: early enough to be a baseline, and only paid for by
        requests that are slow."""
        if self.kv_params is None:
            return
        if self._entry is not None:
            self._entry.decode = decode
        if self._timer is None and self._before is None:
            wait_s = self.prefill_end + self.lease_s / 2 - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._read_baseline)

    @property
    def late_after(self) -> float:
        """Monotonic time from which a first byte must be checked."""
        return routing.late_after(self.prefill_end, self.lease_s) if self.kv_params is not None else math.inf

    async def kv_kept(self) -> bool:
        """Reads the counter again; False if it grew or one of the readings failed."""
        before = await asyncio.shield(self._before) if self._before is not None else None
        after = await expiry.read(self.engine, self._limits)
        return routing.kv_was_kept(before, after)

    def end(self, how: End) -> None:
        """Closes the ledger's entry; only the first call counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ledger is not None and self._entry is not None:
            self._ledger.end(self._entry, how, time.time())

    def _read_baseline(self) -> None:
        now = time.monotonic()
        shared = self.engine.expiry_reading
        if shared is None or now - shared[0] > BASELINE_SHARED_S:
            task = asyncio.get_running_loop().create_task(expiry.read(self.engine, self._limits))
            shared = self.engine.expiry_reading = (now, task)
        self._before = shared[1]

"""KV that waits on a prefill engine for a decode engine to pull it, and whether a late answer may be believed."""

from __future__ import annotations

import math
import time
from typing import Any

from controlplane.router import expiry
from controlplane.router.engines import Engine
from controlplane.router.ledger import End, Entry, Ledger
from controlplane.router.limits import Limits


class Handoff:
    """`kv_params` goes verbatim into the decode leg. None: there is nothing to pull by parameters, and no lease: the
    connector keeps KV in a shared store, or the prefill left none."""

    def __init__(
        self,
        engine: Engine,
        kv_params: dict[str, Any] | None,
        prefill_end: float,
        lease_s: float,
        baseline: expiry.Baseline,
        limits: Limits,
    ) -> None:
        self.engine = engine
        self.kv_params = kv_params
        self.prefill_end = prefill_end
        """Monotonic; at the latest when the prefill really ended, as far as this process can know."""
        self.lease_s = lease_s
        self.prompt_details: bytes | None = None
        """The prefill's prompt_tokens_details as JSON; None: the decode engine's own are right."""
        self.asked = False
        """A decode engine was given the request."""
        self._limits = limits
        self._ledger: Ledger | None = None
        self._entry: Entry | None = None
        self._baseline = baseline
        self._watched = False
        if kv_params is None:
            baseline.cancel()

    def enter(self, ledger: Ledger, request: str, size: int) -> None:
        """Opens its entry in the ledger. Without parameters no engine holds anything for it."""
        if self.kv_params is not None:
            self._ledger = ledger
            route = self.engine.route
            self._entry = ledger.open(request, route.id, route.incarnation, size, self.lease_s, time.time())

    def decode_starts(self, decode: str) -> None:
        """Notes who is about to pull."""
        if self._entry is not None:
            self._entry.decode = decode

    @property
    def late_after(self) -> float:
        """Monotonic time from which a first byte must be checked."""
        return self._baseline.deadline if self.kv_params is not None else math.inf

    def in_time(self, at: float | None) -> bool:
        """Whether a first byte that came then (monotonic) proves that the KV was pulled while its lease lasted."""
        return self.kv_params is None or (at is not None and at <= self.late_after)

    async def kv_kept(self) -> bool:
        """Whether an answer after `late_after` may be believed: the counter was read before a lease can have ended, and
        has not moved since (a restart moves it down)."""
        before = self._baseline.value
        return before is not None and before == await expiry.read(self.engine, self._limits)

    def keep_baseline(self) -> None:
        """The reading is still wanted after the end; `drop_baseline` must follow."""
        self._watched = True

    def drop_baseline(self) -> None:
        self._watched = False
        self._baseline.cancel()

    def end(self, how: End) -> None:
        """Closes the ledger's entry; only the first call counts."""
        if not self._watched:
            self._baseline.cancel()
        if self._ledger is not None and self._entry is not None:
            self._ledger.end(self._entry, how, time.time())

"""KV of finished prompts that an engine keeps for peers, each under a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.core.batching import Request, Scheduler
from workers.engines.simulated import content
from workers.engines.simulated.clock import Clock, Timer
from workers.engines.simulated.faults import Faults
from workers.engines.simulated.generation import Generation
from workers.engines.simulated.measures import Measures
from workers.engines.simulated.settings import Settings


@dataclass(frozen=True)
class Offer:
    """KV kept for a peer: what each block contains."""

    request: Request
    contents: dict[int, int]


class Offers:
    """`freed` is called when blocks have become free. Leases are in seconds of the clock, whatever the engine's speed."""

    def __init__(
        self,
        engine_id: str,
        settings: Settings,
        clock: Clock,
        scheduler: Scheduler,
        measures: Measures,
        faults: Faults,
        freed: Callable[[], None],
    ) -> None:
        self._engine_id, self._settings, self._clock = engine_id, settings, clock
        self._scheduler, self._measures, self._faults, self._freed = scheduler, measures, faults, freed
        self.side_port = settings.side_port
        """Where peers fetch it; whoever opens the port sets it."""
        self._offers: dict[str, Offer] = {}
        self._timer: Timer | None = None

    def keep(self, generation: Generation) -> dict[str, Any]:
        """Hold the KV of a finished generation under a new lease. Returns the parameters that a decode leg needs."""
        request = generation.request
        self._scheduler.finish(request, self._new_lease())
        self._offers[generation.name] = Offer(request, dict(zip(request.blocks, generation.held_contents(), strict=True)))
        self._watch()
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(request.blocks),
            "remote_engine_id": self._engine_id,
            "remote_request_id": generation.name,
            "remote_host": self._settings.host,
            "remote_port": self.side_port,
            "tp_size": self._settings.perf.tensor_parallel,
            "remote_num_tokens": request.computed,
        }

    def read(self, name: str, blocks: Sequence[int]) -> list[int]:
        """What a peer finds in these blocks of an offer: its KV, or whatever is there once the offer is gone."""
        offer = self._offers.get(name)
        if offer is None:
            return content.garbage(f"{self._engine_id}:gone", blocks)
        lost = content.garbage(f"{self._engine_id}:other", blocks)
        return [offer.contents.get(block, wrong) for block, wrong in zip(blocks, lost, strict=True)]

    def pulled(self, name: str) -> None:
        """A peer tells that it has the KV of an offer, or will not fetch it any more."""
        offer = self._offers.pop(name, None)
        if offer is None:
            self._measures.add("late_notifications", 1)
        else:
            self._scheduler.release(offer.request.id)
            self._freed()

    def renew(self, name: str) -> None:
        """A peer's request still waits: a new lease, if the old one has not ended."""
        offer = self._offers.get(name)
        if offer:
            offer.request.lease_until = self._new_lease()

    def shorten(self) -> None:
        """A fault has begun that lets leases end early: those that run, too."""
        for request in self._scheduler.held.values():
            request.lease_until = min(request.lease_until, self._new_lease())
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._watch()

    def _new_lease(self) -> float:
        """When a lease that begins now ends."""
        now, lease_s = self._clock.time(), self._settings.kv_lease_s
        early = self._faults.get("expire_early", now)
        return now + (min(lease_s, early["lease_s"]) if early else lease_s)

    def _watch(self) -> None:
        """One timer, for the lease that ends first."""
        if self._timer is None and self._scheduler.held:
            first = min(request.lease_until for request in self._scheduler.held.values())
            self._timer = self._clock.call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer = None
        gone = {request.id for request in self._scheduler.expire(self._clock.time())}
        if gone:
            self._measures.add("leases_expired", len(gone))
            self._offers = {name: offer for name, offer in self._offers.items() if offer.request.id not in gone}
            self._freed()
        self._watch()

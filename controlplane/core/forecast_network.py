"""KV transfers between the forecast's engines: each engine has one link out and one in, shared equally. Pure.

The fluid model of `core.links.SharedLink`, as the simulated engines use it: a transfer runs at the smaller of its shares at
both ends. All transfers between two engines then run equally fast, so they are kept as one flow, and a change costs as much
as there are flows at its two ends, not transfers.
"""

from __future__ import annotations

import heapq
import math

from controlplane.core.forecast_engine import Leg, nanosecond


class _Flow:
    """The transfers from one engine to another. `sent`: bytes that each of them would have got, had it been there always."""

    __slots__ = ("at_s", "destination", "end_s", "rate", "sent", "source", "transfers")

    def __init__(self, source: int, destination: int) -> None:
        self.source = source
        self.destination = destination
        self.transfers: list[tuple[float, int, Leg]] = []
        """A heap by the value of `sent` at which each is through."""
        self.sent = 0.0
        self.rate = 0.0
        self.at_s = 0.0
        self.end_s = math.inf

    def runs_at(self, rate: float, now: float) -> None:
        self.sent += (now - self.at_s) * self.rate
        self.at_s, self.rate = now, rate
        self.end_s = now + max(0.0, self.transfers[0][0] - self.sent) / rate


class Network:
    """Engines are numbered; `bytes_per_s` is each one's link, in each direction."""

    def __init__(self, bytes_per_s: list[float]) -> None:
        self.next_end_s = math.inf
        """When the next transfer is through if nothing changes; infinite without any."""
        self._bytes_per_s = bytes_per_s
        self._out: list[dict[int, _Flow]] = [{} for _ in bytes_per_s]
        self._in: list[dict[int, _Flow]] = [{} for _ in bytes_per_s]
        """By engine: its flows by their other end."""
        self._sending = [0] * len(bytes_per_s)
        self._receiving = [0] * len(bytes_per_s)
        self._flows: dict[_Flow, None] = {}
        self._started = 0

    def start(self, now: float, leg: Leg, source: int, destination: int, size_bytes: float) -> None:
        flow = self._out[source].get(destination)
        if flow is None:
            flow = _Flow(source, destination)
            flow.at_s = now
            self._out[source][destination] = self._in[destination][source] = flow
            self._flows[flow] = None
        self._started += 1
        sent = flow.sent + (now - flow.at_s) * flow.rate
        heapq.heappush(flow.transfers, (sent + size_bytes, self._started, leg))
        self._count(source, destination, 1, now)

    def pop(self, now: float) -> tuple[Leg, int]:
        """The transfer that is through now, with its destination."""
        flow = min(self._flows, key=lambda each: (nanosecond(each.end_s), each.source, each.destination))
        _, _, leg = heapq.heappop(flow.transfers)
        if not flow.transfers:
            del self._flows[flow], self._out[flow.source][flow.destination], self._in[flow.destination][flow.source]
        self._count(flow.source, flow.destination, -1, now)
        return leg, flow.destination

    def _count(self, source: int, destination: int, change: int, now: float) -> None:
        """Both links have one transfer more or less: new rates for all flows at them."""
        self._sending[source] += change
        self._receiving[destination] += change
        for flow in (*self._out[source].values(), *self._in[destination].values()):
            sends = self._bytes_per_s[flow.source] / self._sending[flow.source]
            receives = self._bytes_per_s[flow.destination] / self._receiving[flow.destination]
            flow.runs_at(min(sends, receives), now)
        self.next_end_s = min((flow.end_s for flow in self._flows), default=math.inf)

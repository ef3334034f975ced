"""KV transfers between the forecast's engines: each engine has one link out and one in, shared equally (core.links). Pure.

A transfer runs at the smaller of its two shares, as the simulated engines do it.
"""

from __future__ import annotations

import math

from controlplane.core.forecast_engine import Leg
from controlplane.core.links import SharedLink


class Network:
    """Engines are numbered; `bytes_per_s` is each one's link, in each direction."""

    def __init__(self, bytes_per_s: list[float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._in: dict[int, SharedLink[Leg]] = {}
        self._out: dict[int, dict[Leg, int]] = {}
        """Source → its transfers → their destinations."""
        self._ends: dict[int, tuple[float, Leg]] = {}
        """Destination → its first transfer to end."""
        self._route: dict[Leg, tuple[int, int]] = {}

    def start(self, now: float, leg: Leg, source: int, destination: int, size_bytes: float) -> None:
        outgoing = self._out.setdefault(source, {})
        outgoing[leg] = destination
        self._route[leg] = source, destination
        if destination not in self._in:
            self._in[destination] = SharedLink(self._bytes_per_s[destination])
        self._in[destination].start(now, leg, size_bytes)
        self._changed(now, source, destination)

    def next_end(self) -> float:
        """When the next transfer is through if nothing changes; infinite without any."""
        return min((end for end, _ in self._ends.values()), default=math.inf)

    def pop(self, now: float) -> tuple[Leg, int, int]:
        """The transfer that is through now, with its source and destination."""
        destination = min(self._ends, key=lambda each: self._ends[each][0])
        leg = self._ends[destination][1]
        source, _ = self._route.pop(leg)
        del self._out[source][leg]
        self._in[destination].stop(now, leg)
        self._changed(now, source, destination)
        return leg, source, destination

    def _changed(self, now: float, source: int, destination: int) -> None:
        outgoing = self._out[source]
        touched = {destination: None} | dict.fromkeys(outgoing.values())
        for leg, other in outgoing.items():
            self._in[other].limit(now, leg, self._bytes_per_s[source] / len(outgoing))
        for each in touched:
            end = self._in[each].next_end()
            if end is None:
                self._ends.pop(each, None)
            else:
                self._ends[each] = end

"""Engines that change their role while a simulation runs: what a planner does to a fleet, in virtual time. Pure.

Activity stays with the pool in which an engine began; requests and gaps are counted as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controlplane.core.forecast_routing import Node, Router
from controlplane.core.forecast_types import Served
from controlplane.core.protocol import Role


class Fleet:
    """What a control may look at and do, at one moment."""

    def __init__(self, nodes: Sequence[Node], router: Router, served: Sequence[Served]) -> None:
        self._nodes, self._router = nodes, router
        self.served = served
        """All that finished so far, in the order in which they did."""

    def drained(self, engine: int) -> bool:
        """Whether it has no leg left."""
        return not self._nodes[engine].in_flight

    def waiting(self, engine: int) -> int:
        """Legs that it has."""
        return self._nodes[engine].in_flight

    def leave(self, engine: int) -> None:
        """No new legs for it."""
        self._router.leave(self._nodes[engine])

    def join(self, engine: int, role: Role) -> None:
        """New legs of `role` for it. The last engine of a role must not leave before another has joined."""
        self._router.join(self._nodes[engine], role)


class Control(Protocol):
    """Acts at `next_s`, and says then when it wants to act again (infinite: never)."""

    @property
    def next_s(self) -> float: ...

    def act(self, now: float, fleet: Fleet) -> None: ...

"""Who changes the split during a simulated day: the planner, a reactive autoscaler, nobody. In virtual time.

Every minute a control sees what the console would: the requests that arrived, and the latencies of those that finished. A
retask is what it is in the fleet: the engine gets no more requests, drains, is verified (RETASK_S) and joins the other pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.core.forecast import Arrival
from controlplane.core.forecast_control import Fleet
from controlplane.core.forecast_types import Served
from controlplane.core.planner import FleetNow, ModelNow, PoolNow, PoolPlan, Proposal, propose
from controlplane.core.protocol import Role, Slo
from controlplane.core.workload import Observed, Seen, Window, window_of

TICK_S = 60.0
PLAN_EVERY = 5
"""Ticks of the planner: its guards let nothing happen sooner."""
LOOK_S = 1.0
"""While an engine drains."""
RETASK_S = 10.0
"""From drained to serving in the other pool: change of role and its proof."""
FEWEST = 20


@dataclass
class Move:
    engine: int
    role: Role
    ready_s: float = math.inf
    """When it joins; infinite until it has drained."""


class Retasks:
    """Engines by role, and those on their way. `log`: (time, prefill engines, decode engines) after each change; `moves`:
    the time of each."""

    def __init__(self, prefills: int, decodes: int) -> None:
        both: tuple[Role, Role] = ("prefill", "decode")
        self.roles = [both[0]] * prefills + [both[1]] * decodes
        self.moving: list[Move] = []
        self.moves: list[float] = []
        self.log: list[tuple[float, int, int]] = [(0.0, prefills, decodes)]

    def count(self, role: Role) -> int:
        """As wanted: those on their way count where they go."""
        return sum(each == role for each in self.roles)

    def begin(self, now: float, fleet: Fleet, source: Role, target: Role) -> None:
        """The engine of `source` with the fewest requests starts on its way."""
        away = {move.engine for move in self.moving}
        able = [engine for engine, role in enumerate(self.roles) if role == source and engine not in away]
        if len(able) < 2:
            return
        engine = min(able, key=lambda each: (fleet.waiting(each), each))
        fleet.leave(engine)
        self.roles[engine] = target
        self.moving.append(Move(engine, target))
        self.moves.append(now)
        self.log.append((now, self.count("prefill"), self.count("decode")))

    def advance(self, now: float, fleet: Fleet) -> None:
        for move in self.moving:
            if move.ready_s == math.inf and fleet.drained(move.engine):
                move.ready_s = now + RETASK_S
            elif now >= move.ready_s:
                fleet.join(move.engine, move.role)
        self.moving = [move for move in self.moving if now < move.ready_s]


class Ticking:
    """A control that decides every minute and advances moves every second. Subclasses decide."""

    def __init__(self, arrivals: Sequence[Arrival], slo: Slo, prefills: int, decodes: int) -> None:
        self.arrivals, self.slo, self.retasks = arrivals, slo, Retasks(prefills, decodes)
        self.next_s = TICK_S
        self._decide_s = TICK_S
        self._arrived = self._seen = 0
        self.windows: list[Window] = []
        self.observed: list[Observed] = []

    def act(self, now: float, fleet: Fleet) -> None:
        self.retasks.advance(now, fleet)
        if now >= self._decide_s:
            self._look(now, fleet)
            self.decide(now, fleet)
            self._decide_s += TICK_S
        self.next_s = min(self._decide_s, now + LOOK_S) if self.retasks.moving else self._decide_s

    def decide(self, now: float, fleet: Fleet) -> None:
        """Begin moves, or not."""

    def _look(self, now: float, fleet: Fleet) -> None:
        first = self._arrived
        while self._arrived < len(self.arrivals) and self.arrivals[self._arrived].at_s < now:
            self._arrived += 1
        seen = [Seen(a.at_s, a.prompt_tokens, a.output_tokens) for a in self.arrivals[first : self._arrived]]
        self.windows.append(window_of(seen, now - TICK_S, now))
        ended = fleet.served[self._seen :]
        self._seen += len(ended)
        self.observed = [*self.observed[-30:], self._latencies(now, ended)]

    def _latencies(self, now: float, ended: Sequence[Served]) -> Observed:
        if len(ended) < FEWEST:
            return Observed(now, samples=len(ended), warming=bool(self.retasks.moving))
        ttft = sorted(each.ttft_s for each in ended)
        tpot = sorted(each.tpot_s or 0.0 for each in ended)
        place = math.ceil(0.99 * len(ended)) - 1
        return Observed(now, ttft[place] * 1e3, tpot[place] * 1e3, len(ended), warming=bool(self.retasks.moving))


class Fixed(Ticking):
    """Nobody changes anything."""

    def act(self, now: float, fleet: Fleet) -> None:
        self.next_s = math.inf


class Reactive(Ticking):
    """One engine at a time towards the pool whose target was missed in the last minute, then a cool-down: what autoscalers
    that look at latencies do."""

    cooldown_s = 600.0

    def decide(self, now: float, fleet: Fleet) -> None:
        last = self.observed[-1]
        moved = self.retasks.moves
        if last.ttft_p99_ms is None or self.retasks.moving or (moved and now - moved[-1] < self.cooldown_s):
            return
        ttft, itl = last.ttft_p99_ms / self.slo.ttft_ms, (last.itl_p99_ms or 0.0) / self.slo.itl_ms
        if max(ttft, itl) <= 1:
            return
        if ttft >= itl:
            self.retasks.begin(now, fleet, "decode", "prefill")
        else:
            self.retasks.begin(now, fleet, "prefill", "decode")


class Planned(Ticking):
    """The product's planner, as control runs it: automatic, its own guards, the whole fleet its own."""

    def __init__(self, arrivals: Sequence[Arrival], model: ModelNow, prefills: int, decodes: int) -> None:
        super().__init__(arrivals, model.slo, prefills, decodes)
        self.model = model
        self.proposals: list[tuple[float, Proposal]] = []
        self.plan_s: list[float] = []

    def decide(self, now: float, fleet: Fleet) -> None:
        if len(self.windows) % PLAN_EVERY:
            return
        moves = self.retasks.moves
        decision = propose(FleetNow((self._now(now, moves),)), now)
        for proposal in decision.proposals:
            self.proposals.append((now, proposal))
            self._carry_out(now, fleet, proposal.pools)

    def _now(self, now: float, moves: Sequence[float]) -> ModelNow:
        pools = tuple(replace(pool, engines=self.retasks.count(pool.role)) for pool in self.model.pools)
        return replace(
            self.model,
            pools=pools,
            windows=tuple(self.windows),
            observed=tuple(self.observed),
            metrics_at_s=now,
            warming=len(self.retasks.moving),
            changed_at_s=moves[-1] if moves else None,
            moved_at_s=tuple(at for at in moves if now - at < 3600),
        )

    def _carry_out(self, now: float, fleet: Fleet, pools: Sequence[PoolPlan]) -> None:
        wanted = {pool.role: pool.engines for pool in pools}
        more = wanted["prefill"] - self.retasks.count("prefill")
        for _ in range(more):
            self.retasks.begin(now, fleet, "decode", "prefill")
        for _ in range(-more):
            self.retasks.begin(now, fleet, "prefill", "decode")


def pools_now(prefills: int, decodes: int, degree: int, kind: str) -> tuple[PoolNow, ...]:
    return PoolNow("prefill", prefills, degree, kind), PoolNow("decode", decodes, degree, kind)

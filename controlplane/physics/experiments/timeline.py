"""What one engine of each role does step by step for some seconds: its activity, and the gaps between tokens. Seconds.

The engines are the forecast's exact ones. A prefill engine gets its share of the prompts for one token each, a decode engine
its share of the answers with the KV already there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from controlplane.core.batching import Limits
from controlplane.core.forecast import Arrival, Gaps, Pool, PoolTotals, Settings
from controlplane.core.forecast_engine import Account, Leg, StepCosts
from controlplane.core.forecast_stepwise import StepwiseEngine
from controlplane.core.perf import PhaseModel, StepCost
from controlplane.core.protocol import Role
from controlplane.physics.workload import Distribution, draw

WARM_S = 20.0
"""Left out, so that an engine is seen as busy as it stays."""
WINDOWS_S = (0.1, 1.0)
"""Over which a monitor might average; DCGM's usual interval is the second."""
SEED = 1


class Moment(NamedTuple):
    """One step: when it began, and what it cost."""

    at_s: float
    cost: StepCost


class _Recorder(Account):
    """Keeps the steps besides adding them up."""

    def __init__(self, totals: PoolTotals) -> None:
        super().__init__(totals, Gaps())
        self.costs: list[StepCost] = []

    def step(self, cost: StepCost) -> None:
        super().step(cost)
        self.costs.append(cost)


def document(
    model: PhaseModel, settings: Settings, tokens: tuple[int, int], rate: float, pools: tuple[int, int], seconds: float
) -> dict[str, Any]:
    """One engine of a fleet that serves `rate` requests/s whole, and one of each pool of a split of the same engines into
    `pools` (prefill, decode)."""
    engines = {"mixed": sum(pools), "prefill": pools[0], "decode": pools[1]}
    roles: tuple[Role, ...] = ("mixed", "prefill", "decode")
    return {
        "rate": rate,
        "seconds": seconds,
        "engines": engines,
        **{role: _engine(model, settings, tokens, rate / engines[role], role, seconds) for role in roles},
    }


def _engine(
    model: PhaseModel, settings: Settings, tokens: tuple[int, int], rate: float, role: Role, seconds: float
) -> dict[str, Any]:
    prompt, output = tokens
    arrivals = draw(Distribution(prompt, 1 if role == "prefill" else output, rate=rate, seconds=WARM_S + seconds), SEED)
    moments = steps(model, settings, arrivals, role)
    kept = [moment._replace(at_s=moment.at_s - WARM_S) for moment in moments if 0 <= moment.at_s - WARM_S < seconds]
    return {
        "steps": [
            [round(at_s, 4), round(1e3 * cost.seconds, 2), round(cost.tensor, 3), round(cost.dram, 3)] for at_s, cost in kept
        ],
        "windows": [{"seconds": window, **_windows(kept, window, seconds)} for window in WINDOWS_S],
    }


def steps(model: PhaseModel, settings: Settings, arrivals: Sequence[Arrival], role: Role) -> list[Moment]:
    """All steps of one engine that serves `arrivals`, a decode engine with their KV already there."""
    capacity = model.kv_capacity_tokens(settings.memory_utilization, settings.max_num_batched_tokens)
    recorder = _Recorder(PoolTotals(Pool(role, 1, model), capacity))
    blocks = capacity // settings.block_size
    limits = Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.block_size, blocks, False)
    engine = StepwiseEngine(StepCosts(model), limits, recorder)
    waiting = [Leg(number, arrival, (), 0) for number, arrival in enumerate(arrivals)][::-1]
    moments: list[Moment] = []
    now = 0.0
    while True:
        while waiting and waiting[-1].arrival.at_s <= now:
            leg = waiting.pop()
            leg.remote = role == "decode"
            engine.submit(leg)
        end, loads = engine.start(now)
        for leg in loads:
            engine.loaded(leg)
        if end is None and not loads:
            if not waiting:
                return moments
            now = waiting[-1].arrival.at_s
        elif end is not None:
            engine.advance(end)
            if len(recorder.costs) > len(moments):
                moments.append(Moment(now, recorder.costs[-1]))
            now = end


def _windows(moments: Sequence[Moment], window_s: float, seconds: float) -> dict[str, float]:
    """Mean and highest tensor activity of windows of this length, idle time included."""
    count = round(seconds / window_s)
    busy = [0.0] * count
    for at_s, cost in moments:
        start, end = at_s, at_s + cost.seconds
        for index in range(math.floor(start / window_s), min(count - 1, math.floor(end / window_s)) + 1):
            inside = min(end, (index + 1) * window_s) - max(start, index * window_s)
            busy[index] += cost.tensor * max(0.0, inside)
    shares = [each / window_s for each in busy]
    return {"mean": sum(shares) / count, "highest": max(shares)}

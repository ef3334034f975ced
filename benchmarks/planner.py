"""How much CPU time one tick of the planner takes: one model on 64 GPUs, and 20 models on 1,000.

`manage.py bench planner`: limits 2 s and 10 s. Every model misses its targets, has lengths in many cells, two degrees and
two modes to choose from, and a week of windows behind it. With the heavier load no split suffices, and everybody looks for
GPUs of others.
"""

from __future__ import annotations

import random
import sys
import time

from controlplane.core.modelconfig import read_shape
from controlplane.core.planner import FleetNow, Guards, ModelNow, PoolNow, propose
from controlplane.core.protocol import Slo
from controlplane.core.shapes import Shape
from controlplane.core.workload import Seen, Window, window_of
from controlplane.physics.catalog import read_config

MODEL = "llama-3.1-70b"
WEEK_S, WINDOW_S = 7 * 86_400, 300
NOW = float(30 * 86_400)
LIMITS_S = {64: 2.0, 1000: 10.0}


def main() -> int:
    shape = read_shape(read_config(MODEL))
    slow = 0
    for gpus, count, load in ((64, 1, 0.5), (1000, 20, 0.5), (1000, 20, 3.0)):
        models = tuple(model(shape, number, gpus // count, load) for number in range(count))
        fleet = FleetNow(models, {"h100-sxm": 16})
        began = time.process_time()
        decision = propose(fleet, NOW)
        seconds = time.process_time() - began
        slow += seconds > LIMITS_S[gpus]
        print(
            f"{gpus:5,} GPUs, {count:2} models, {load:g} requests/s per engine: {seconds:5.2f} s of CPU, "
            f"limit {LIMITS_S[gpus]:g} s; "
            f"{len(decision.proposals)} proposals, {len(decision.holds)} holds"
        )
    return int(slow > 0)


def model(shape: Shape, number: int, gpus: int, load: float) -> ModelNow:
    engines = gpus // 4
    return ModelNow(
        name=f"model-{number:02}",
        shape=shape,
        mode="disaggregated",
        modes=("disaggregated", "conditional"),
        pools=(
            PoolNow("prefill", max(1, engines // 6), 4, "h100-sxm", degrees=(2, 4)),
            PoolNow("decode", max(1, engines - engines // 6), 4, "h100-sxm", degrees=(2, 4)),
        ),
        slo=Slo(2000.0, 50.0),
        level="automatic",
        priority=number % 3,
        windows=windows(number, load * engines),
        metrics_at_s=NOW,
        guards=Guards(moves_per_hour=20),
    )


def windows(seed: int, rate: float) -> tuple[Window, ...]:
    """A week; only the last hour's lengths are drawn, the rest repeat them."""
    dice = random.Random(seed)
    hour = [drawn(dice, rate, NOW - WINDOW_S * back) for back in range(11, -1, -1)]
    count = WEEK_S // WINDOW_S
    return tuple(
        Window(
            NOW - WINDOW_S * (back + 1),
            NOW - WINDOW_S * back,
            hour[back % 12].rate,
            hour[back % 12].mix,
            1.5,
            hour[0].samples,
        )
        for back in range(count - 1, -1, -1)
    )


def drawn(dice: random.Random, rate: float, until_s: float) -> Window:
    since_s, seen = until_s - WINDOW_S, []
    at_s = since_s
    while (at_s := at_s + dice.expovariate(rate)) < until_s:
        prompt, output = dice.lognormvariate(7.5, 0.9), dice.lognormvariate(5, 0.8)
        seen.append(Seen(at_s, max(1, min(16_000, round(prompt))), max(2, round(output)), 0))
    return window_of(seen, since_s, until_s)


if __name__ == "__main__":
    sys.exit(main())

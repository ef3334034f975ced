"""How much CPU time a forecast takes: 64 GPUs, ten minutes of 8 requests/s of 4,096 tokens in and 300 out, one process.

`manage.py bench forecast [--exact]`: limit 2 s for each mode. Also the highest rate within the SLO, which is a search over
simulations, and with --exact the same workload step by step through core/batching, with the largest difference.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from controlplane.core.forecast import (
    Arrival,
    Criterion,
    Forecast,
    Saturation,
    Settings,
    highest_rate,
    pools_of,
    simulate,
    summarise,
)
from controlplane.core.layout import parse_layout
from controlplane.core.modelconfig import read_shape
from controlplane.core.protocol import Slo
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import read_config

MODEL = "llama-3.1-70b"
LAYOUTS = ("agg:16xTP4", "disagg:8xTP4+8xTP4", "cond:8xTP4+8xTP4")
RATE, SECONDS, PROMPT, ANSWER = 8.0, 600.0, 4096, 300
FAMILIES, SHARED_BLOCKS = 50, 128
LIMIT_S = 2.0
SLO = Slo(ttft_ms=1000, itl_ms=50)

T = TypeVar("T")


def main(exact: bool) -> int:
    shape = read_shape(read_config(MODEL))
    plain = arrivals(prefixes=False)
    workloads = {"no prefixes": plain, f"{FAMILIES} prefixes of {SHARED_BLOCKS * 16} tokens": arrivals(prefixes=True)}
    print(f"{len(plain)} requests; CPU seconds of simulation and summary, limit {LIMIT_S:g}")
    slowest = 0.0
    for text in LAYOUTS:
        for name, workload in workloads.items():
            seconds, merged = timed(partial(forecast, shape, text, workload, False))
            slowest = max(slowest, seconds)
            line = f"{text:20} {name:28} {seconds:6.2f} s"
            if exact:
                seconds, single = timed(partial(forecast, shape, text, workload, True))
                line += f"   step by step {seconds:6.2f} s, largest difference {difference(merged, single):.3%}"
            print(line)
    for text in LAYOUTS[:2]:
        seconds, found = timed(partial(saturation, shape, text, plain))
        print(
            f"{text:20} {f'highest rate {found.requests_per_second:.2f}/s':28} {seconds:6.2f} s"
            f"   {found.tries} simulations; {found.missed} fails above"
        )
    return int(slowest > LIMIT_S)


def forecast(shape: Shape, layout: str, workload: list[Arrival], exact: bool) -> Forecast:
    return summarise([simulate(shape, parse_layout(layout, "h100-sxm"), workload, Settings(exact=exact))], SLO)


def saturation(shape: Shape, text: str, workload: list[Arrival]) -> Saturation:
    layout, settings = parse_layout(text, "h100-sxm"), Settings()
    return highest_rate(pools_of(shape, layout, settings), workload, settings, layout.mode, Criterion(SLO))


def arrivals(prefixes: bool) -> list[Arrival]:
    dice, now, found = random.Random(1), 0.0, []
    while True:
        now += dice.expovariate(RATE)
        if now > SECONDS:
            return found
        family = dice.randrange(FAMILIES)
        blocks = tuple(family << 32 | index for index in range(SHARED_BLOCKS)) if prefixes else ()
        found.append(Arrival(now, PROMPT, ANSWER, blocks))


def timed(do: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = do()
    return time.process_time() - began, result


def difference(one: Forecast, two: Forecast) -> float:
    """Largest relative difference of the percentiles and the throughput."""
    pairs = [(one.tokens_per_second.value, two.tokens_per_second.value)]
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        pairs += [(a.value, b.value) for a, b in zip(getattr(one, name), getattr(two, name), strict=True)]
    return max(abs(a / b - 1) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main("--exact" in sys.argv[1:]))

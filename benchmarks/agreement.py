"""Simulated engine processes in real time, under HTTP load, against the forecast of the same requests.

`manage.py bench agreement [--seconds S]`: each case is served by one engine, then by a pair that hands KV over (the two legs
sent as the router does). The client's times of TTFT, time between tokens and end-to-end are compared with the forecast at
p50 (limit 10%); p99 is printed. What is left over is real: HTTP, the processors that client and engines share, and timers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from _engines import EngineProcess, ask, running, spec, stream

from controlplane.core.forecast import Arrival, Outcome, Pool, Settings, simulate_pools
from workers.engines.simulated.settings import settings_of

LIMIT = 0.10
MODEL, GPU, TP = "llama-3.1-70b", "h100-sxm", 4
NETWORK_GBPS = 100.0


@dataclass(frozen=True)
class Case:
    name: str
    rate: float
    prompt: tuple[int, int]
    answer: tuple[int, int]

    def arrivals(self, seconds: float) -> list[Arrival]:
        chance, at_s, found = random.Random(3), 0.0, []
        while (at_s := at_s + chance.expovariate(self.rate)) < seconds:
            found.append(Arrival(at_s, chance.randint(*self.prompt), chance.randint(*self.answer)))
        return found


CASES = (
    Case("chat", 2.0, (200, 1500), (50, 300)),
    Case("the field's prompts", 0.6, (4096, 4096), (300, 300)),
    Case("short prompts", 4.0, (150, 270), (40, 120)),
)


@dataclass
class Seen:
    ttft_s: float
    e2e_s: float
    gaps_s: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench agreement", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals, for each case and way")
    options = parser.parse_args()
    worst = 0.0
    print(f"{MODEL} on {TP} x {GPU}; measured at the client / forecast, in ms; + means that the forecast is above")
    with running([spec(name, MODEL, GPU, TP, network_gbps=NETWORK_GBPS) for name in ("one", "other")]) as engines:
        asyncio.run(_warm(engines))
        for case in CASES:
            for mode in ("monolithic", "disaggregated"):
                arrivals = case.arrivals(options.seconds)
                began = time.monotonic()
                seen = asyncio.run(_load(engines, arrivals, mode == "disaggregated"))
                off = _compare(f"{case.name}, {mode}", seen, _forecast(arrivals, mode))
                print(f"  {len(seen)} requests in {time.monotonic() - began:.0f} s")
                worst = max(worst, off)
    print(f"largest difference at p50: {worst:.1%} (limit {LIMIT:.0%})")
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return int(worst > LIMIT)


async def _warm(engines: Sequence[EngineProcess]) -> None:
    arrival = Arrival(0.0, 100, 5)
    await _load(engines, [arrival] * 3, split=False)
    await _load(engines, [arrival] * 3, split=True)


async def _load(engines: Sequence[EngineProcess], arrivals: Sequence[Arrival], split: bool) -> list[Seen]:
    began = time.monotonic() + 0.1
    return await asyncio.gather(*(_request(engines, began, arrival, split) for arrival in arrivals))


async def _request(engines: Sequence[EngineProcess], began: float, arrival: Arrival, split: bool) -> Seen:
    """One request at its time, whole on the first engine, or through the first and then the second."""
    chance = random.Random(f"{began} {arrival.at_s}")  # no prompt twice: the engines remember
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": chance.choices(range(1000, 30000), k=arrival.prompt_tokens),
        "max_tokens": arrival.output_tokens,
        "ignore_eos": True,
    }
    await asyncio.sleep(began + arrival.at_s - time.monotonic())
    sent = time.monotonic()
    engine = engines[0]
    if split:
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        leg = await ask(engine, "/v1/completions", body | {"max_tokens": 1, "kv_transfer_params": params})
        body["kv_transfer_params"] = leg["kv_transfer_params"]
        engine = engines[1]
    times = await stream(engine, "/v1/completions", body)
    return Seen(times[0] - sent, times[-1] - sent, [after - before for before, after in itertools.pairwise(times)])


def _forecast(arrivals: Sequence[Arrival], mode: Any) -> Outcome:
    engine = settings_of(spec("one", MODEL, GPU, TP), 0, "h", 1, 2)
    limits = engine.limits
    settings = Settings(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=limits.block_size,
        kv_tokens=limits.num_blocks * limits.block_size,
        network_gbps=NETWORK_GBPS,
    )
    roles = ("mixed",) if mode == "monolithic" else ("prefill", "decode")
    return simulate_pools([Pool(role, 1, engine.perf) for role in roles], arrivals, settings, mode)


def _compare(name: str, seen: Sequence[Seen], outcome: Outcome) -> float:
    """Prints one line per figure; the largest difference at p50."""
    gaps = sorted(gap for each in seen for gap in each.gaps_s)
    print(name)
    worst = 0.0
    for figure, measured, forecast in (
        ("TTFT", [each.ttft_s for each in seen], _of([each.ttft_s for each in outcome.served])),
        ("ITL", gaps, (outcome.gaps.quantile(0.5), outcome.gaps.quantile(0.99))),
        ("e2e", [each.e2e_s for each in seen], _of([each.e2e_s for each in outcome.served])),
    ):
        (p50, p99), (told50, told99) = _of(measured), forecast
        off50, off99 = told50 / p50 - 1, told99 / p99 - 1
        print(
            f"  {figure:<5} p50 {p50 * 1e3:8.1f} / {told50 * 1e3:8.1f} ({off50:+6.1%})"
            f"   p99 {p99 * 1e3:8.1f} / {told99 * 1e3:8.1f} ({off99:+6.1%})"
        )
        worst = max(worst, abs(off50))
    return worst


def _of(values: Sequence[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


if __name__ == "__main__":
    sys.exit(main())

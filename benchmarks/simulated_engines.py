"""CPU and memory of 64 simulated engine processes that serve 8 requests/s of 300 tokens in all.

`manage.py bench simulated_engines [--engines N --rate R --prompt TOKENS --answer TOKENS --seconds S]`: one engine (a
Llama-3.1-8B on one H100) per process, in real time, streamed chat answers. Limits: 1 core, 3 GB. Only the engines' own time
is counted, not that of the client; for a processor that others use too, CPU time is the figure to trust.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time

import psutil
from _engines import MODEL, EngineProcess, running, spec, stream

WORDS = ("account", "answer", "archive", "balance", "border", "bridge", "budget", "cable", "canyon", "carbon", "cargo")
CHARACTERS_PER_TOKEN = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench simulated_engines", description=__doc__)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--answer", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with running([spec(f"e{number}") for number in range(options.engines)]) as engines:
        idle_s = _cpu_s(engines)
        time.sleep(5)
        idle = (_cpu_s(engines) - idle_s) / 5
        began, cpu_s = time.monotonic(), _cpu_s(engines)
        tokens = asyncio.run(_serve(engines, options))
        seconds, cpu_s = time.monotonic() - began, _cpu_s(engines) - cpu_s
        cores, memory = cpu_s / seconds, [psutil.Process(each.pid).memory_full_info() for each in engines]
        pss, rss = sum(each.pss for each in memory), sum(each.rss for each in memory)
    load = f"{options.rate:g} requests/s of {options.prompt} + {options.answer} tokens"
    print(f"{options.engines} engines, {load}, {seconds:.0f} s")
    print(f"CPU            {cores:6.2f} cores (limit 1)")
    print(f"CPU, idle      {idle:6.2f} cores")
    print(f"CPU per token  {cpu_s / tokens * 1e6:6.0f} us ({tokens:,} tokens)")
    print(f"memory (PSS)   {pss / 1e9:6.2f} GB    (limit 3)")
    print(f"memory (RSS)   {rss / 1e9:6.2f} GB, what is shared counted in each")
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return int(cores > 1 or pss > 3e9)


def _cpu_s(engines: list[EngineProcess]) -> float:
    times = [psutil.Process(each.pid).cpu_times() for each in engines]
    return sum(each.user + each.system for each in times)


async def _serve(engines: list[EngineProcess], options: argparse.Namespace) -> int:
    """Poisson arrivals over the engines in turn; the tokens that came until all were answered."""
    chance = random.Random(1)
    end = time.monotonic() + options.seconds
    tasks, number = [], 0
    while time.monotonic() < end:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": _text(chance, options.prompt)}],
            "max_tokens": options.answer,
            "ignore_eos": True,
        }
        tasks.append(asyncio.create_task(stream(engines[number % len(engines)], "/v1/chat/completions", body)))
        number += 1
        await asyncio.sleep(chance.expovariate(options.rate))
    return sum(len(times) for times in await asyncio.gather(*tasks))


def _text(chance: random.Random, tokens: int) -> str:
    characters = tokens * CHARACTERS_PER_TOKEN
    return " ".join(chance.choices(WORDS, k=characters // 5))[:characters]


if __name__ == "__main__":
    sys.exit(main())

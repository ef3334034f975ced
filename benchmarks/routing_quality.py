"""How much of a trace's prefixes the router's decisions find in the engines' caches, and how evenly engines work.

`manage.py bench routing_quality --trace FILE` plays a whole Mooncake trace (see `_mooncake.py`) in virtual time through
core/routing.py and core/kvindex.py over 4 prefill and 4 decode engines: FCFS prefills at 15,500 uncached tokens/s an engine,
caches of 12,000 blocks of 512 tokens in total on the prefill engines and as many on the decode engines, 25 ms a token.
The router sees what the real one sees: what it sent, when legs end, and the engines' cache sizes. Beside it: round robin,
least-loaded (fewest prompt tokens outstanding), one shared cache of the same total size and an infinite one.
With `--live` its first 1,000 requests go through the real router process to 8 simulated engine processes instead (see
`_routing_live.py`; 4 times as fast as the trace, answers cut to 32 tokens); hits and tokens are the engines' own counts.
Limits: hit share >= 90% of the one shared cache's, max/mean of tokens prefilled an engine <= 1.3.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import _routing_live
from _mooncake import BLOCK_TOKENS, Arrival, hit_share, read

from controlplane.core import routing
from controlplane.core.blocks import BlockPool
from controlplane.core.kvindex import Holder, KvIndex
from controlplane.core.protocol import EngineRoute, Role
from controlplane.core.scoring import Source

PREFILL_TOKENS_PER_S = 15_500.0
TOKEN_S = 0.025
KV_BYTES_PER_TOKEN = 131_072
"""Of Llama-3.1-8B; at 100 Gb/s a pull of 12,000 tokens takes 126 ms."""
EXPIRE_S = 60.0
KEPT_S = 3600.0


class Engine:
    """One engine's truth (its cache and queue) and what the router knows of it (`load`, `holder`)."""

    def __init__(self, id: str, role: Role, index: KvIndex, rates: routing.Rates, blocks: int) -> None:
        self.route = EngineRoute(id, "http://virtual", role)
        self.load, self.rates, self.links = routing.Load(), rates, routing.Links()
        self.kv_tokens = blocks * BLOCK_TOKENS
        self.usable = True
        self.salt = routing.mix(sum(id.encode()) << 8, 1)
        self.holder: Holder = index.add(id, blocks)
        self.cache = BlockPool(blocks)
        self.free_at = 0.0
        self.prefilled = self.hit_tokens = 0

    def serve(self, arrival: Arrival) -> int:
        """Uncached tokens of a prompt whose turn it is; afterwards the cache holds it."""
        hit = self.cache.hit(arrival.keys, len(arrival.keys))
        self.cache.share(hit)
        fresh = self.cache.take(len(arrival.keys) - len(hit))
        if fresh is None:
            raise SystemExit(
                f"a prompt of {arrival.prompt_tokens} tokens does not fit a cache of {self.cache.num_blocks} blocks"
            )
        for block, key in zip(fresh, arrival.keys[len(hit) :], strict=True):
            self.cache.remember(block, key)
        self.cache.give_back([*hit, *fresh])
        uncached = arrival.prompt_tokens - len(hit) * BLOCK_TOKENS
        self.prefilled += uncached
        self.hit_tokens += len(hit) * BLOCK_TOKENS
        return uncached


@dataclass
class Fleet:
    prefill: list[Engine]
    decode: list[Engine]
    index: KvIndex
    ttfts: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, engines: int, blocks: int) -> Fleet:
        index, rates = KvIndex(), (routing.Rates(), routing.Rates(decode=40 * 64))
        return cls(
            [Engine(f"p{number}", "prefill", index, rates[0], blocks // engines) for number in range(engines)],
            [Engine(f"d{number}", "decode", index, rates[1], blocks // engines) for number in range(engines)],
            index,
        )

    @property
    def hit_share(self) -> float:
        hit = sum(each.hit_tokens for each in self.prefill)
        return hit / (hit + sum(each.prefilled for each in self.prefill))

    @property
    def imbalance(self) -> float:
        tokens = [each.prefilled for each in self.prefill]
        return max(tokens) / statistics.mean(tokens)


Pick = Callable[[Fleet, routing.Request], Engine]


def by_prefix(fleet: Fleet, need: routing.Request) -> Engine:
    chosen = routing.choose("prefill", [*fleet.prefill, *fleet.decode], need).engine
    assert chosen is not None
    return chosen


def round_robin() -> Pick:
    turn = count()
    return lambda fleet, need: fleet.prefill[next(turn) % len(fleet.prefill)]


def least_loaded(fleet: Fleet, need: routing.Request) -> Engine:
    return min(fleet.prefill, key=lambda each: (each.load.prefill_tokens, routing.mix(need.session, each.salt)))


def play(arrivals: Sequence[Arrival], fleet: Fleet, pick: Pick) -> Fleet:
    """The whole trace in virtual time."""
    events: list[tuple[float, int, Callable[[float], None]]] = []
    order = count()

    def at(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(order), what))

    expired_at = 0.0

    def arrive(number: int, arrival: Arrival, now: float) -> None:
        nonlocal expired_at
        if now - expired_at > EXPIRE_S:
            expired_at = now
            fleet.index.expire(now - KEPT_S)
        need = routing.Request(arrival.prompt_tokens, max(1, arrival.output_tokens), routing.mix(number, 7))
        need.cached = look_up(fleet, arrival)
        engine = pick(fleet, need)
        reserved = engine.load.reserve(need.uncached(engine.route.id), 0, arrival.prompt_tokens)
        engine.holder.insert(arrival.keys, now)
        began = max(now, engine.free_at)
        uncached = engine.serve(arrival)
        engine.free_at = began + uncached / PREFILL_TOKENS_PER_S

        def prefilled(end: float) -> None:
            reserved.release()
            engine.rates.saw_prefill(reserved.ahead_tokens + uncached, end - now)
            decode(arrival, need, engine, now, end)

        at(engine.free_at, prefilled)

    def decode(arrival: Arrival, need: routing.Request, source: Engine, arrived: float, now: float) -> None:
        need.cached = look_up(fleet, arrival)
        pull = Source(source.route.id, lambda tokens: tokens * KV_BYTES_PER_TOKEN)
        engine = routing.choose("decode", fleet.decode, need, source=pull).engine
        assert engine is not None
        reserved = engine.load.reserve(0, need.output_tokens, need.prompt_tokens + need.output_tokens)
        engine.holder.insert(arrival.keys, now)
        size = engine.serve(arrival) * KV_BYTES_PER_TOKEN
        first = now + size / engine.links.bytes_per_s(source.route.id)
        fleet.ttfts.append(first - arrived)
        at(first + need.output_tokens * TOKEN_S, lambda _: reserved.release())

    for number, arrival in enumerate(arrivals):
        at(arrival.at_s, lambda now, number=number, arrival=arrival: arrive(number, arrival, now))
    while events:
        now, _, what = heapq.heappop(events)
        what(now)
    return fleet


def look_up(fleet: Fleet, arrival: Arrival) -> dict[str, int]:
    return {holder.name: blocks * BLOCK_TOKENS for holder, blocks in fleet.index.match(arrival.keys).items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench routing_quality", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, action="append")
    parser.add_argument("--engines", type=int, default=4, help="of each role")
    parser.add_argument("--blocks", type=int, default=12_000, help="of all engines of a role together")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--requests", type=int, help="only so many of the trace's first (default: all, live 1,000)")
    parser.add_argument("--speed", type=float, default=4.0, help="of engines and trace, live")
    parser.add_argument("--answer", type=int, default=32, help="most tokens of an answer, live")
    options = parser.parse_args()
    return max(report(path, options) for path in options.trace)


def report(path: Path, options: argparse.Namespace) -> int:
    engines, blocks = options.engines, options.blocks
    arrivals = read(path, options.requests or (1000 if options.live else None))
    shared, infinite = hit_share(arrivals, blocks), hit_share(arrivals, None)
    print(f"{path.name}: {len(arrivals):,} requests, {sum(each.prompt_tokens for each in arrivals):,} prompt tokens")
    print(f"{'':24}{'tokens hit':>12}{'of shared':>11}{'max/mean':>10}{'TTFT p50':>10}{'p99':>9}{'decode hit':>12}")
    print(f"{'infinite cache':24}{infinite:12.1%}{infinite / shared:11.1%}")
    print(f"{f'one cache of {blocks:,}':24}{shared:12.1%}{1:11.1%}")
    rows: list[tuple[str, Pick]] = [("round robin", round_robin()), ("least-loaded", least_loaded), ("twinpool", by_prefix)]
    good = False
    for name, pick in rows:
        began = time.process_time()
        fleet = play(arrivals, Fleet.of(engines, blocks), pick)
        spent_us = (time.process_time() - began) / len(arrivals) * 1e6
        cuts = statistics.quantiles(fleet.ttfts, n=100)
        pulled = sum(each.prefilled for each in fleet.decode)
        kept = 1 - pulled / sum(each.prompt_tokens for each in arrivals)
        print(
            f"{name:24}{fleet.hit_share:12.1%}{fleet.hit_share / shared:11.1%}{fleet.imbalance:10.2f}"
            f"{cuts[49]:8.2f} s{cuts[98]:7.2f} s{kept:12.1%}"
        )
        good = fleet.hit_share >= 0.9 * shared and fleet.imbalance <= 1.3
    print(f"{spent_us:.0f} us of CPU a request, the simulation included; index at the end: {len(fleet.index):,} blocks")
    if options.live:
        seen = _routing_live.play(arrivals, engines, blocks, options.speed, options.answer)
        print(f"{'live':24}{seen.hit_share:12.1%}{seen.hit_share / shared:11.1%}{seen.imbalance:10.2f}")
        print(f"live: {seen.failed} failed, the last sent {seen.late_s:.1f} s late, {seen.router_cpu_us:.0f} us of CPU each")
        good = not seen.failed and seen.hit_share >= 0.9 * shared and seen.imbalance <= 1.3
    print("limits (>= 90% of one cache, max/mean <= 1.3): " + ("held" if good else "BROKEN"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

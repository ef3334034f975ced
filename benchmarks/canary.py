"""How often the canary's test rolls back what is no worse, and how soon it finds a regression (core/canary.py).

`manage.py bench canary` simulates 1,000 A/A canaries (both arms the same) and 200 each of an ITL twice as long, a TTFT half
as long again, 3% of sessions that fail, and 5% with failed KV transfers. Sessions have 1 to 6 requests, alike in a session;
the load, and with it the share over the SLO, rises and falls for both arms (0.4% to 10% of sessions); 0.5% fail in both.
A canary has 10% of sessions, then 25%, then 50%. The verdict is asked for whenever the evidence has changed, which is the
hardest case.
Limits: at most 5% of A/A canaries rolled back; 95% of the 2 x ITL canaries rolled back within 2,000 requests.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.core.canary import Guardrails, Progress, judge
from controlplane.core.trial import Evidence, Session

TTFT_SLO_MS, ITL_SLO_MS = 1000.0, 50.0
STEPS = (0.1, 0.25, 0.5)
WITHIN_REQUESTS = 2000
GUARDRAILS = Guardrails(min_step_s=0.0)
DAY_SESSIONS = 6000
"""Sessions from one peak of the load to the next."""


@dataclass(frozen=True)
class Change:
    """What the canary does otherwise than main."""

    ttft: float = 1.0
    itl: float = 1.0
    failed: float = 0.0
    kv_lost: float = 0.0


CHANGES = {
    "A/A": Change(),
    "ITL x 2": Change(itl=2.0),
    "TTFT x 1.5": Change(ttft=1.5),
    "3% fail": Change(failed=0.03),
    "5% of transfers fail": Change(kv_lost=0.05),
}


@dataclass(frozen=True)
class Ended:
    """`how`: promoted, rolled back (`because`), or open after the last request."""

    how: str
    because: str
    requests: int
    canary_sessions: int


def sessions(chance: random.Random, change: Change, share: float, number: int) -> tuple[Session, int]:
    """One session and how many requests it had."""
    load = 1.0 + 0.25 * math.sin(2 * math.pi * number / DAY_SESSIONS)
    requests = min(6, 1 + int(chance.expovariate(1.0)))
    canary = chance.random() < share
    own = change if canary else Change()
    own_pace, own_wait = chance.lognormvariate(0, 0.1), chance.lognormvariate(0, 0.2)
    itl = max(33.0 * load * own.itl * own_pace * chance.lognormvariate(0, 0.06) for _ in range(requests))
    ttft = max(420.0 * load * own.ttft * own_wait * chance.lognormvariate(0, 0.25) for _ in range(requests))
    failed = chance.random() < 0.005 + own.failed
    over = failed or itl > ITL_SLO_MS or ttft > TTFT_SLO_MS
    kv_lost = chance.random() < own.kv_lost
    return Session(canary, over, failed, kv_lost), requests


def canary(seed: int, change: Change, most_requests: int) -> Ended:
    """A whole canary, looked at after every block."""
    chance = random.Random(seed)
    evidence, step, requests = Evidence(), 0, 0
    number = chance.randrange(DAY_SESSIONS)
    while requests < most_requests:
        session, more = sessions(chance, change, STEPS[step], number)
        number, requests = number + 1, requests + more
        before, evidence = evidence, evidence.with_sessions([session], STEPS[step])
        if evidence.steps is before.steps:
            continue  # it waits for sessions of the other arm
        judgement = judge(evidence, GUARDRAILS, Progress(len(STEPS), 0.0, 0.0))
        if judgement.action == "roll_back":
            return Ended("rolled back", judgement.because, requests, evidence.canary.sessions)
        if judgement.action == "promote":
            step += 1
            if step == len(STEPS):
                return Ended("promoted", "", requests, evidence.canary.sessions)
            evidence = evidence.next_step()
    return Ended("open", "", requests, evidence.canary.sessions)


def campaign(name: str, count: int, most_requests: int, seed: int) -> list[Ended]:
    return [canary(seed + index, CHANGES[name], most_requests) for index in range(count)]


def told(name: str, ended: list[Ended]) -> Iterator[str]:
    hows = Counter(each.how for each in ended)
    why = Counter(each.because for each in ended if each.how == "rolled back")
    requests = sorted(each.requests for each in ended if each.how != "open")
    yield f"{name}: {len(ended)} canaries: " + ", ".join(f"{count} {how}" for how, count in hows.most_common())
    if why:
        yield "  rolled back because of " + ", ".join(f"{because} {count}" for because, count in why.most_common())
    if requests:
        p50, p95 = statistics.median(requests), requests[min(len(requests) - 1, int(0.95 * len(requests)))]
        yield f"  requests until decided: p50 {p50:,.0f}, p95 {p95:,}, most {requests[-1]:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=1000, help="A/A canaries; of each regression a fifth (1000)")
    parser.add_argument("--requests", type=int, default=40_000, help="a canary is left open after so many (40,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=CHANGES, help="may be given more than once")
    options = parser.parse_args()
    started, good = time.monotonic(), True
    for name in options.only or CHANGES:
        same = name == "A/A"
        count = options.canaries if same else max(1, options.canaries // 5)
        ended = campaign(name, count, options.requests, options.seed * 1_000_000)
        print("\n".join(told(name, ended)), flush=True)
        rolled_back = [each for each in ended if each.how == "rolled back"]
        soon = sum(each.requests <= WITHIN_REQUESTS for each in rolled_back)
        if same:
            good &= len(rolled_back) <= 0.05 * count
        elif name == "ITL x 2":
            good &= soon >= 0.95 * count
        if not same:
            print(f"  found within {WITHIN_REQUESTS:,} requests: {soon} of {count}")
    print(f"{time.monotonic() - started:.0f} s; limits {'kept' if good else 'NOT kept'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""The simulated engine (its real scheduler and core, on a clock moved by hand) and the forecast say the same of a load."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from controlplane.core.forecast import Arrival, Outcome, Pool, Settings, simulate_pools
from controlplane.core.protocol import Mode
from tests.simulated_engines import spec
from tests.virtual_engines import Answer, VirtualFleet, percentile
from workers.engines.simulated.settings import Settings as EngineSettings
from workers.engines.simulated.settings import settings_of

P50, P99 = 0.05, 0.10
"""How far the forecast may be from the engine."""


@dataclass(frozen=True)
class Case:
    """A load on one engine, or on a pair with KV handed over. Lengths are uniform, arrivals Poisson."""

    rate: float
    prompt: tuple[int, int]
    answer: tuple[int, int]
    requests: int = 300
    args: dict[str, Any] = field(default_factory=dict)
    network_gbps: float = 100.0
    shared_blocks: int = 0
    """Leading blocks that half of the requests have in common."""

    def arrivals(self) -> list[Arrival]:
        chance, at_s, found = random.Random(17), 0.0, []
        for _ in range(self.requests):
            at_s += chance.expovariate(self.rate)
            shared = tuple(range(1, self.shared_blocks + 1)) if chance.random() < 0.5 else ()
            found.append(Arrival(at_s, chance.randint(*self.prompt), chance.randint(*self.answer), shared))
        return found

    def engine(self, name: str) -> EngineSettings:
        args = {"speed": 1.0, "max_model_len": 16384} | self.args
        return settings_of(spec(name, args=args, network_gbps=self.network_gbps), 0, "h", 1, 2)

    def forecast(self, mode: Mode, exact: bool) -> Outcome:
        engine = self.engine("e")
        limits = engine.limits
        roles = ("mixed",) if mode == "monolithic" else ("prefill", "decode")
        return simulate_pools(
            [Pool(role, 1, engine.perf) for role in roles],
            self.arrivals(),
            Settings(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                block_size=limits.block_size,
                kv_tokens=limits.num_blocks * limits.block_size,
                network_gbps=self.network_gbps,
                prefix_caching=limits.prefix_caching,
                exact=exact,
            ),
            mode,
        )


CASES = {
    "light": Case(rate=2.0, prompt=(100, 1000), answer=(20, 200)),
    "busy": Case(rate=12.0, prompt=(200, 2000), answer=(50, 300)),
    "long prompts in chunks": Case(rate=1.5, prompt=(3000, 12000), answer=(20, 200), args={"max_num_batched_tokens": 2048}),
    "a queue for seats": Case(rate=8.0, prompt=(100, 1000), answer=(50, 200), args={"max_num_seqs": 8}),
    "shared beginnings": Case(rate=8.0, prompt=(1200, 2000), answer=(20, 200), shared_blocks=64),
    "a narrow network": Case(rate=3.0, prompt=(500, 4000), answer=(20, 200), network_gbps=10.0),
    "preemptions": Case(rate=8.0, prompt=(500, 1500), answer=(50, 400), args={"kv_cache_memory_bytes": 3 << 30}),
}
FIGURES: dict[str, tuple[Callable[[Answer], list[float]], Callable[[Outcome, float], float]]] = {
    "ttft": (lambda answer: [answer.ttft_s], lambda outcome, q: percentile([r.ttft_s for r in outcome.served], q)),
    "itl": (lambda answer: answer.gaps_s, lambda outcome, q: outcome.gaps.quantile(q)),
    "e2e": (lambda answer: [answer.e2e_s], lambda outcome, q: percentile([r.e2e_s for r in outcome.served], q)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_engine_and_the_forecast_agree(name: str) -> None:
    case = CASES[name]
    fleet = VirtualFleet(case.engine("e"))
    answers = fleet.serve(case.arrivals())
    agree(answers, case.forecast("monolithic", exact=False), case.forecast("monolithic", exact=True))
    counted = fleet.engines[0].measures.counters
    assert (name == "preemptions") == (counted["preemptions"][""].value > 0)
    assert (name == "shared beginnings") == (counted["prefix_hits"][""].value > 0)


@pytest.mark.parametrize("name", CASES)
def test_a_pair_that_hands_over_and_the_forecast_agree(name: str) -> None:
    case = CASES[name]
    fleet = VirtualFleet(case.engine("p"), case.engine("d"))
    answers = fleet.serve(case.arrivals(), prefill=0, decode=1)
    agree(answers, case.forecast("disaggregated", exact=False), case.forecast("disaggregated", exact=True))
    assert fleet.engines[1].measures.histograms["transfer_s"].count == len(answers)


def agree(answers: Sequence[Answer], *outcomes: Outcome) -> None:
    for figure, (of_answer, of_outcome) in FIGURES.items():
        measured = [value for answer in answers for value in of_answer(answer)]
        for share, within in ((0.5, P50), (0.99, P99)):
            engine = percentile(measured, share)
            assert [of_outcome(outcome, share) for outcome in outcomes] == pytest.approx([engine] * 2, rel=within), figure
    assert [len(outcome.served) for outcome in outcomes] == [len(answers)] * 2

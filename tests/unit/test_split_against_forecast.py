"""What the steady conventions promise, the event simulation finds reachable: it has a queue, real arrivals and KV transfers.

The two share step times and nothing else. Limits are loose on purpose: a fixed factor for a queue is no law (the wait before
a single prefill engine is longer, before twelve shorter), but a chosen layout must be able to carry its load.
"""

from __future__ import annotations

import random
import statistics

import pytest

from controlplane.core.forecast import Arrival, Outcome, Settings, simulate
from controlplane.core.splitplan import Plan
from controlplane.physics.split_reference import Scenario, scenarios, searched

LOAD = 0.9
REQUESTS = 400


def simulated(scenario: Scenario, plan: Plan) -> Outcome:
    """Poisson arrivals at 90% of the plan's rate."""
    source = random.Random(1)
    at_s, arrivals = 0.0, []
    for _ in range(REQUESTS):
        at_s += source.expovariate(plan.requests_per_second * LOAD)
        arrivals.append(Arrival(at_s, scenario.lengths.prompt, scenario.lengths.output))
    settings = Settings(max_num_seqs=max(8, *plan.batches))
    return simulate(scenario.shape, plan.layout, arrivals, settings)


@pytest.mark.parametrize("mode", ["monolithic", "disaggregated"])
@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_the_chosen_layout_carries_nine_tenths_of_its_rate(scenario: Scenario, mode: str) -> None:
    result = searched(scenario)
    plan = (result.aggregated if mode == "monolithic" else result.disaggregated)[0]
    served = simulated(scenario, plan).served
    assert len(served) == REQUESTS
    assert statistics.mean(one.ttft_s for one in served) < 2 * plan.ttft_s
    assert statistics.mean(one.tpot_s or 0.0 for one in served) < 1.2 * plan.tpot_s

"""The steady rate of fixed layouts agrees with AIConfigurator's, and rates are counted between start and tail."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from controlplane.core.forecast import Arrival, Settings, simulate
from controlplane.core.layout import parse_layout
from controlplane.core.modelconfig import read_shape
from controlplane.core.protocol import Slo
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.catalog import DATA, read_config
from controlplane.physics.rates import at_rate, counted
from controlplane.physics.steady import steady
from controlplane.physics.traffic import Drawn
from controlplane.physics.workload import Distribution, draw

SCENARIOS: list[dict[str, Any]] = json.loads((DATA / "split_search.json").read_text())["scenarios"]
MODELS = {
    "meta-llama/Meta-Llama-3.1-70B": ("llama-3.1-70b", "auto"),
    "meta-llama/Meta-Llama-3.1-8B": ("llama-3.1-8b", "auto"),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("llama-3.1-70b", "fp8"),
}


def ratio(scenario: dict[str, Any]) -> float:
    """Output tokens/s per GPU of the listed split / of the listed single pool, as --saturate gives it."""
    args, agg, disagg = scenario["args"], scenario["agg"], scenario["disagg"]
    model, weights = MODELS[args["model_path"]]
    asked = ForecastRequest(
        model,
        read_config(model),
        Drawn(Distribution(args["isl"], args["osl"], rate=1.0, seconds=10.0)),
        Slo(args["ttft"], args["tpot"]),
        weights=weights,
        kv_dtype="fp8" if weights == "fp8" else "auto",
    )
    gpu = args["system"].replace("_", "-")
    one = parse_layout(f"agg:{args['total_gpus'] // agg['tp']}xTP{agg['tp']}", gpu)
    prefill, decode = (f"{disagg[f'({pool})workers']}xTP{disagg[f'({pool})tp']}" for pool in "pd")
    two = parse_layout(f"disagg:{prefill}+{decode}", gpu)
    return steady(asked, two).rate / two.gpus / (steady(asked, one).rate / one.gpus)


def test_listed_layouts_have_the_right_winner_where_it_is_clear() -> None:
    errors = []
    for scenario in SCENARIOS:
        theirs = scenario["disagg"]["tokens/s/gpu"] / scenario["agg"]["tokens/s/gpu"]
        ours = ratio(scenario)
        if abs(theirs - 1) > 0.15:
            assert (ours > 1) == (theirs > 1), scenario["id"]
        errors.append(abs(ours / theirs - 1))
    assert median(errors) <= 0.08
    assert max(errors) <= 0.15


def request(**changes: Any) -> ForecastRequest:
    traffic = Drawn(Distribution(1000, 100, rate=1.0, seconds=10.0))
    return replace(ForecastRequest("m", read_config("llama-3.1-8b"), traffic, Slo(500, 20)), **changes)


def test_limits_that_are_just_missed_are_stretched_and_said() -> None:
    layout = parse_layout("disagg:1xTP1+1xTP1", "h100-sxm")
    first = steady(request(), layout)
    assert first.rate > 0
    assert first.notes == ()
    tight = steady(request(slo=Slo(first.ttft_s * 1e3 / 1.05, 20)), layout)
    assert tight.rate > 0
    assert "only when they are stretched by 10%" in tight.notes[0]
    never = steady(request(slo=Slo(first.ttft_s * 1e3 / 2, 20)), layout)
    assert never.rate == 0
    assert "TTFT over" in never.notes[0]


def test_more_engines_and_a_held_prefix_raise_the_steady_rate() -> None:
    one, two = (steady(request(), parse_layout(f"agg:{count}xTP1", "h100-sxm")).rate for count in (1, 2))
    assert two == pytest.approx(2 * one)
    assert steady(request(prefix_cached=800), parse_layout("agg:1xTP1", "h100-sxm")).rate > one


def test_pools_of_several_kinds_add_up() -> None:
    asked = request(slo=Slo(2000, 50))
    both = steady(asked, parse_layout("agg:1xTP1@h100-sxm+1xTP1@l40s", "l4")).rate
    alone = [steady(asked, parse_layout("agg:1xTP1", kind)).rate for kind in ("h100-sxm", "l40s")]
    assert both == pytest.approx(sum(alone))


def test_rates_leave_out_start_and_tail() -> None:
    arrivals = draw(Distribution(1000, 300, rate=4.0, seconds=60.0, arrival="constant"), 1)
    outcome = simulate(read_shape(read_config("llama-3.1-8b")), parse_layout("agg:2xTP1", "h100-sxm"), arrivals, Settings())
    found = counted(outcome, arrivals, Slo())
    assert found.requests == pytest.approx(4.0, rel=0.02)
    assert found.tokens == pytest.approx(1200, rel=0.02)
    assert found.good == found.requests
    assert len(outcome.served) / outcome.span_s < 3.95, "the tail would have hidden it"
    assert at_rate(outcome, 4.0, Slo()).tokens == pytest.approx(1200)


def test_a_single_request_has_a_rate() -> None:
    arrivals = (Arrival(0.0, 100, 10),)
    outcome = simulate(read_shape(read_config("qwen3-0.6b")), parse_layout("agg:1xTP1", "h100-sxm"), arrivals, Settings())
    assert counted(outcome, arrivals, Slo()).requests == pytest.approx(1 / outcome.span_s)

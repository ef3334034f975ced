"""What a change would do, said in steps before anybody asks for it: and without a trace."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.control import actions
from controlplane.control.refused import Refused
from controlplane.core.preview import Estimate, PoolCourse, Preview
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import done, everything, fleet, gpus, said

pytestmark = pytest.mark.django_db


def plan(action: Any, *args: Any, **options: Any) -> Preview:
    """The plan, which left every row as it was."""
    before = everything()
    found: Preview = actions.preview(action, ANN, *args, **options)
    assert everything() == before, "a plan left something behind"
    return found


def test_a_rebalance_says_which_engine_moves_and_how_many_serve_meanwhile() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    found = plan(actions.rebalance, "m", {"prefill": 1, "decode": 3})
    assert said(found) == ["retask P2 decode"]
    assert found.instant and found.complete and not found.waits
    assert found.pools == (PoolCourse("m/prefill", 2, 1, 1, 1), PoolCourse("m/decode", 2, 2, 3, 1))
    assert (found.before, found.after) == ({"pools": {"prefill": 2, "decode": 2}}, {"pools": {"prefill": 1, "decode": 3}})
    [step] = found.steps
    assert (step.engine, step.node, step.role) == ("m-2", "n1", "decode") and step.reason


def test_a_change_of_mode_is_instant_where_engines_can_stay() -> None:
    fleet("monolithic", mixed=4)
    found = plan(actions.set_mode, "m", "disaggregated")
    assert said(found) == [
        "switch disaggregated",
        "retask M1 prefill",
        "retask M2 decode",
        "retask M3 decode",
        "retask M4 decode",
    ]
    assert found.instant and {pool.pool: pool.then for pool in found.pools} == {"m/mixed": 0, "m/prefill": 1, "m/decode": 3}


def test_pools_of_other_gpus_make_a_change_of_mode_rolling() -> None:
    model = fleet("monolithic", mixed=2)
    gpus(4, on="n2")
    models.Gpu.objects.filter(node__name="n2").update(kind="h100-sxm")
    for role in ("prefill", "decode"):
        models.Pool.objects.create(model=model, role=role, desired_engines=0, gpu_kinds=["h100-sxm"])
    found = plan(actions.set_mode, "m", "disaggregated")
    assert not found.instant and found.complete and not found.waits
    words = said(found)
    assert words.index("switch disaggregated") > words.index("start P3 prefill") and "stop M1 mixed" in words
    assert {step.node for step in found.steps if step.verb == "start"} == {"n2"}


def test_a_roll_out_replaces_above_the_floors() -> None:
    fleet("disaggregated", free=1, prefill=2, decode=2)
    found = plan(actions.roll_out, "m", actions.RollOut(source="org/m2"))
    assert [step.verb for step in found.steps] == ["start", "stop"] * 4 and not found.instant
    assert all(pool.lowest >= pool.floor and pool.then == 2 for pool in found.pools)


def test_without_room_a_roll_out_stops_an_engine_first() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    found = plan(actions.roll_out, "m", actions.RollOut(source="org/m2"))
    assert [step.verb for step in found.steps] == ["stop", "start"] * 4
    assert all(pool.lowest == 1 for pool in found.pools)


def test_what_it_would_wait_for_is_said() -> None:
    fleet("monolithic", mixed=1)
    models.Node.objects.create(name="n9")  # has not reported: nobody knows what fits
    found = plan(actions.scale_pool, "m", "mixed", 3)
    assert found.waits and "m/mixed: needs 1 free GPU on one node" in found.waits[0]


def test_gpus_that_go_to_another_model_are_shown_in_both() -> None:
    fleet("monolithic", name="a", mixed=2)
    fleet("monolithic", name="b", mixed=1)
    found = plan(actions.move_gpus, "a", "mixed", "mixed", 1, to_model="b")
    assert said(found) == ["stop M2 mixed", "start M2 mixed"] and not found.waits
    assert {pool.pool: pool.then for pool in found.pools} == {"a/mixed": 1, "b/mixed": 2}


def test_the_only_pair_exchanges_its_roles_and_both_serve_meanwhile() -> None:
    fleet("disaggregated", prefill=1, decode=1)
    found = plan(actions.exchange_roles, "m", "m-1", "m-2")
    assert sorted(said(found)) == ["retask D2 prefill", "retask P1 decode"] and found.instant and found.complete
    assert {pool.lowest for pool in found.pools} == {1}


@pytest.mark.parametrize(
    ("action", "args", "words"),
    [
        (actions.drain_engine, ("m-1",), ["hold P1 prefill"]),
        (actions.restart_engine, ("m-1",), ["stop P1 prefill", "start P5 prefill"]),
        (actions.retire_model, ("m",), ["stop P2 prefill", "stop P1 prefill", "stop D4 decode", "stop D3 decode"]),
        (actions.cordon_node, ("n1",), []),
        (actions.update_model, ("m", actions.Update(slo_ttft_ms=900)), []),
    ],
)
def test_other_verbs_are_shown_too(action: Any, args: Any, words: list[str]) -> None:
    fleet("disaggregated", free=1, prefill=2, decode=2)
    found = plan(action, *args)
    assert sorted(said(found)) == sorted(words) and found.complete


def test_a_plan_is_refused_as_the_change_would_be() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    with pytest.raises(Refused, match="its floor is 1"):
        plan(actions.rebalance, "m", {"prefill": 0})


def test_how_long_it_takes_is_told_by_earlier_ones_alone() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    ask = (actions.rebalance, "m", {"prefill": 1, "decode": 3})
    assert plan(*ask).estimate is None
    for seconds in (10, 20, 60):
        actions.rebalance(ANN, "m", {"prefill": 1, "decode": 3})
        begun, ended = "2026-01-01T00:00:00Z", f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"
        newest = models.Operation.objects.filter(finished_at=None)
        newest.update(state="done", created_at=begun, finished_at=ended)
        models.Pool.objects.update(desired_engines=2)
    assert plan(*ask).estimate == Estimate(median_s=20, low_s=15, high_s=40, operations=3)
    done()

"""What routers are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.core.codec import decode, encode
from controlplane.core.protocol import Canary, Mode, ModelRoute, Rank, RoutingTable, Slo
from controlplane.core.table import build_table, next_stamp
from controlplane.core.world import EngineState

MODEL = ModelRoute("m", "disaggregated")
READY = EngineState("e-1", "m", "decode", 1, (Rank("n1", ("g",)),), state="ready", url="http://h:1", incarnation=2)


def listed(*engines: EngineState) -> list[tuple[str, str]]:
    table, _ = build_table([MODEL], engines, {"m": 64}, (0, 1))
    return [(engine.id, engine.state) for engine in table.models[0].engines]


def test_a_ready_engine_is_listed_with_all_that_routers_need() -> None:
    table, _ = build_table([MODEL], [replace(READY, gpu_kind="h100-sxm", tensor_parallel=4)], {"m": 64}, (3, 9))
    route = table.models[0].engines[0]
    assert table.stamp == (3, 9)
    assert (route.url, route.role, route.incarnation, route.node) == ("http://h:1", "decode", 2, "n1")
    assert (route.gpu, route.tp, route.max_num_seqs, route.engine_key) == ("h100-sxm", 4, 64, "")
    assert decode(RoutingTable, encode(table)) == table


@pytest.mark.parametrize("state", ["planned", "starting", "verifying", "failed", "stopping", "stopped", "lost"])
def test_an_engine_that_does_not_serve_is_not_listed(state: str) -> None:
    assert listed(replace(READY, state=state)) == []


def test_an_engine_on_its_way_out_is_draining_at_once() -> None:
    assert listed(replace(READY, wanted=False)) == [("e-1", "draining")]
    assert listed(replace(READY, wanted=False, state="draining")) == [("e-1", "draining")]


def test_an_engine_that_is_held_or_moves_is_draining_in_the_role_it_had() -> None:
    assert listed(replace(READY, held=True)) == [("e-1", "draining")]
    moving = replace(READY, next_role="prefill", next_arm="main", move_phase="leaving")
    table, _ = build_table([MODEL], [moving, replace(READY, id="e-2", number=2, move_phase="aborted")], {}, (0, 1))
    assert [(e.role, e.state) for e in table.models[0].engines] == [("decode", "draining"), ("decode", "ready")]


def test_weights_and_peers_are_told_where_they_are_not_the_usual_ones() -> None:
    other = replace(READY, id="e-2", number=2)
    table, _ = build_table([MODEL], [READY, other], {}, (0, 1), peers={"e-2": ("e-9",)}, weights={"e-2": 0.25})
    assert [(e.weight, e.peers) for e in table.models[0].engines] == [(1.0, ()), (0.25, ("e-9",))]


def test_engines_come_in_order_of_their_number() -> None:
    assert listed(replace(READY, id="e-2", number=2), READY) == [("e-1", "ready"), ("e-2", "ready")]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (ModelRoute("b", "monolithic", aliases=("m",)), "the name m"),
        (ModelRoute("b", "monolithic", aliases=("x", "x")), "the name x"),
        (ModelRoute("b", "monolithic", slo=Slo(ttft_ms=float("inf"))), "slo.ttft_ms: must be a finite number"),
        (ModelRoute("b", "together"), "mode: must be one of"),  # type: ignore[arg-type]
    ],
)
def test_a_model_that_routers_would_refuse_is_left_out_alone(bad: ModelRoute, why: str) -> None:
    table, left_out = build_table([MODEL, bad, ModelRoute("c", "monolithic")], [READY], {}, (0, 1))
    assert [model.name for model in table.models] == ["m", "c"]
    assert list(left_out) == ["b"] and why in left_out["b"]
    assert decode(RoutingTable, encode(table)) == table


def test_the_next_table_has_the_next_generation() -> None:
    assert next_stamp((2, 5), [(2, 5), (1, 9)]) == (2, 6)


def test_a_table_somewhere_newer_than_ours_raises_the_epoch() -> None:
    assert next_stamp((2, 5), [(2, 8)]) == (3, 6)
    assert next_stamp((0, 0), [(4, 2)]) == (5, 1)


def canary_of(mode: Mode, *engines: EngineState, shared: bool = False, share: float = 1.0) -> Canary | None:
    route = replace(MODEL, canary=Canary("canary", mode, share, shared, id=7))
    table, left_out = build_table([route], engines, {}, (0, 1))
    assert not left_out
    return table.models[0].canary


def test_a_canary_has_at_most_its_part_of_the_gpus_that_serve() -> None:
    main = [replace(READY, id=f"e-{number}", number=number) for number in range(3)]
    arm = replace(READY, id="e-9", number=9, role="mixed", arm="canary")
    assert canary_of("monolithic", *main, arm) == Canary("canary", "monolithic", 0.25, id=7)
    assert canary_of("monolithic", *main, arm, share=0.1) == Canary("canary", "monolithic", 0.1, id=7)
    large = replace(arm, tensor_parallel=3)
    assert canary_of("monolithic", *main, large) == Canary("canary", "monolithic", 0.5, id=7)


def test_a_canary_waits_for_a_ready_engine_of_each_role_it_needs() -> None:
    prefill = replace(READY, id="e-8", number=8, role="prefill", arm="canary")
    decode_engine = replace(READY, id="e-9", number=9, arm="canary")
    assert canary_of("conditional", READY, prefill) is None
    assert canary_of("conditional", READY, prefill, replace(decode_engine, state="starting")) is None
    assert canary_of("conditional", READY, prefill, decode_engine) is not None
    assert canary_of("monolithic", READY) is None


def test_a_canary_on_shared_engines_has_the_share_it_was_given() -> None:
    assert canary_of("conditional", READY, shared=True, share=0.2) == Canary("canary", "conditional", 0.2, True, 7)
    assert canary_of("monolithic", READY, shared=True) is None, "routers would refuse the model"

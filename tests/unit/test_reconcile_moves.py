"""Engines change pools while they run, modes change, launches are renewed: tick by tick on a fleet in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from controlplane.core.handoff_probe import BEHIND
from controlplane.core.plan import BeginMove, Create, Flip, Retire
from controlplane.core.retask import PATIENCE_S, VERIFY_S
from tests.unit.fleet_rig import Rig

PD = {("prefill", "main"): 2, ("decode", "main"): 2}


def settled(rig: Rig, ticks: int = 120) -> None:
    for _ in range(ticks):
        if not rig.tick().actions and not rig.busy and all(e.state == "ready" for e in rig.world.engines if e.wanted):
            return
    raise AssertionError((rig.plan, rig.operation))


def roles(rig: Rig) -> Counter[str]:
    return Counter(engine.role for engine in rig.world.engines if engine.serves)


def starts(rig: Rig) -> int:
    return sum(node.starts for node in rig.fleet.values())


def begun(rig: Rig, **sizes: int) -> Rig:
    rig.change("rebalance", sizes={(role, "main"): size for role, size in sizes.items()})
    return rig


def held(rig: Rig, role: str) -> None:
    """An operator holds the oldest engine of this role out of the table."""
    rig._change(next(each.id for each in rig.world.engines if each.role == role), held=True)
    rig.tick()


def test_a_rebalance_moves_engines_without_a_restart() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    settled(begun(rig, prefill=1, decode=3))
    assert roles(rig) == {"prefill": 1, "decode": 3}
    assert (starts(rig), rig.outcomes) == (4, ["done: 1 step done"])


def test_an_engine_that_moves_is_draining_in_its_old_role_until_it_is_verified() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    begun(rig, prefill=1, decode=3).tick()
    (move,) = [action for action in rig.plan.actions if isinstance(action, BeginMove)]
    assert [(e.role, e.state) for e in rig.table.models[0].engines if e.id == move.engine] == [("prefill", "draining")]
    rig.tick(2)
    assert [(e.role, e.state) for e in rig.table.models[0].engines if e.id == move.engine] == [("decode", "ready")]


def test_an_engine_with_work_leaves_when_its_work_or_patience_ends() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    for engine in rig.running():
        for node in rig.fleet.values():
            node.work(engine, 1)
    begun(rig, prefill=1, decode=3).tick(int(PATIENCE_S))
    assert roles(rig) == {"prefill": 1, "decode": 2}
    rig.tick(4)
    assert roles(rig) == {"prefill": 1, "decode": 3}


def test_a_router_that_hangs_holds_a_move_up_no_longer_than_patience() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.router_follows = False
    begun(rig, prefill=1, decode=3).tick(int(PATIENCE_S) + 4)
    assert roles(rig) == {"prefill": 1, "decode": 3}
    assert rig.busy, "the step is done only once the router knows"
    rig.router_follows = True
    settled(rig)


def test_a_move_that_does_not_verify_is_rolled_back_and_says_what_was_seen() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.kv_moves = False
    settled(begun(rig, prefill=1, decode=3))
    assert roles(rig) == {"prefill": 2, "decode": 2}
    assert rig.outcomes[0].startswith("rolled_back: 1 of 1 step failed: retask new-")
    assert "KV did not move from" in rig.outcomes[0] and "no KV came" in rig.outcomes[0]


def test_a_move_waits_for_a_probe_behind_others_and_not_for_one_that_is_silent() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.queue = f"{BEHIND} 40 requests on m-1"
    began = rig.now
    begun(rig, prefill=1, decode=3)
    while rig.now < began + 2 * VERIFY_S:
        rig.tick()
    assert rig.busy and not rig.outcomes
    assert any("40 requests on m-1" in why for why in rig.plan.waiting.values())
    rig.queue = ""
    settled(rig)
    assert roles(rig) == {"prefill": 1, "decode": 3}

    rig.lose_messages = True
    rig.queue = "it says nothing of a queue"
    settled(begun(rig, prefill=2, decode=2))
    assert roles(rig) == {"prefill": 1, "decode": 3}
    assert "no probe with" in rig.outcomes[-1]


def test_the_moves_made_before_one_fails_are_taken_back() -> None:
    rig = Rig(sizes={("prefill", "main"): 4, ("decode", "main"): 1})
    settled(rig)
    begun(rig, prefill=1, decode=4)
    while roles(rig)["decode"] < 2:
        rig.tick()
    rig.broken_kv = {engine.id for engine in rig.world.engines if engine.role == "prefill" or engine.moving}
    settled(rig)
    assert roles(rig) == {"prefill": 4, "decode": 1}
    assert rig.outcomes[0].startswith("rolled_back: 1 of 3 steps failed: retask")


def test_what_is_paused_begins_nothing_new_and_goes_on_when_resumed() -> None:
    rig = Rig(sizes={("prefill", "main"): 4, ("decode", "main"): 1})
    settled(rig)
    begun(rig, prefill=1, decode=4).tick()
    rig.paused(True)
    rig.tick(30)
    assert roles(rig) == {"prefill": 3, "decode": 2}
    rig.paused(False)
    settled(rig)
    assert roles(rig) == {"prefill": 1, "decode": 4}


def test_a_mode_changes_in_one_table_with_every_engine_in_its_new_role() -> None:
    rig = Rig("monolithic", {("mixed", "main"): 4})
    settled(rig)
    rig.change("set_mode", mode="disaggregated", sizes={("mixed", "main"): 0, **PD})
    tables = []
    while rig.busy:
        rig.tick()
        model = rig.table.models[0]
        tables.append((model.mode, tuple(sorted(Counter((e.role, e.state) for e in model.engines).items()))))
    assert set(tables) == {
        ("monolithic", ((("mixed", "ready"), 4),)),
        ("disaggregated", ((("decode", "ready"), 2), (("prefill", "ready"), 2))),
    }
    assert (starts(rig), rig.outcomes) == (4, ["done: 5 steps done"])


def test_a_mode_changes_back_at_once() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.change("set_mode", mode="monolithic", sizes={("mixed", "main"): 4, ("prefill", "main"): 0, ("decode", "main"): 0})
    rig.tick()
    assert [type(action) for action in rig.plan.actions] == [Flip]
    settled(rig)
    assert (roles(rig), starts(rig)) == ({"mixed": 4}, 4)


def test_between_modes_of_the_same_pools_engines_move_and_none_is_started() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.change("set_mode", mode="conditional", sizes={("prefill", "main"): 1, ("decode", "main"): 3})
    settled(rig)
    assert roles(rig) == {"prefill": 1, "decode": 3}
    assert (starts(rig), rig.table.models[0].mode) == (4, "conditional")


def test_a_mode_whose_pairs_move_no_kv_is_not_served() -> None:
    rig = Rig("monolithic", {("mixed", "main"): 4})
    settled(rig)
    rig.kv_moves = False
    rig.change("set_mode", mode="disaggregated", sizes={("mixed", "main"): 0, **PD})
    settled(rig)
    assert (rig.served, roles(rig)) == ("monolithic", {"mixed": 4})
    assert rig.outcomes[0].startswith("rolled_back: 1 of 5 steps failed: switch: KV did not move from")


def test_where_launches_differ_the_new_pools_are_filled_before_the_mode_changes() -> None:
    rig = Rig("monolithic", {("mixed", "main"): 6}, mixed="whole")
    settled(rig)
    rig.change("set_mode", mode="disaggregated", sizes={("mixed", "main"): 0, ("prefill", "main"): 3, ("decode", "main"): 3})
    settled(rig, 400)
    assert (rig.served, roles(rig)) == ("disaggregated", {"prefill": 3, "decode": 3})
    assert starts(rig) == 12
    assert rig.outcomes[0].startswith("done")


def test_one_engine_cannot_be_two_pools_until_another_is_started() -> None:
    rig = Rig("monolithic", {("mixed", "main"): 1})
    settled(rig)
    rig.change("set_mode", mode="disaggregated", sizes={("mixed", "main"): 0, ("prefill", "main"): 1, ("decode", "main"): 1})
    settled(rig)
    assert (rig.served, roles(rig), starts(rig)) == ("disaggregated", {"prefill": 1, "decode": 1}, 2)


def test_an_arm_gets_its_engines_by_moves_and_gives_them_back() -> None:
    rig = Rig("monolithic", {("mixed", "main"): 4})
    settled(rig)
    arm = {("mixed", "main"): 2, ("prefill", "canary"): 1, ("decode", "canary"): 1}
    rig.change("set_canary", sizes=arm)
    settled(rig)
    serving = Counter((e.role, e.arm) for e in rig.world.engines if e.serves)
    assert serving == {("mixed", "main"): 2, ("prefill", "canary"): 1, ("decode", "canary"): 1}
    rig.change("end_canary", sizes={("mixed", "main"): 4, ("prefill", "canary"): 0, ("decode", "canary"): 0})
    settled(rig)
    assert (roles(rig), starts(rig)) == ({"mixed": 4}, 4)


def test_an_engine_that_moved_is_paired_with_verified_ones_only_until_it_is_proven() -> None:
    rig = Rig(sizes={("prefill", "main"): 3, ("decode", "main"): 2})
    settled(rig)
    begun(rig, prefill=2, decode=3)
    seen: list[tuple[str, ...]] = []
    for _ in range(20):
        rig.tick()
        moved = [e for e in rig.world.engines if e.move_since is not None and not e.moving]
        seen += [e.peers for e in rig.table.models[0].engines for m in moved if e.id == m.id]
    assert len(seen[0]) == 1, "one peer was verified"
    assert seen[-1] == (), "all are"


def test_outdated_engines_are_replaced_side_by_side_without_a_gap() -> None:
    rig = Rig(sizes={("prefill", "main"): 2, ("decode", "main"): 2})
    settled(rig)
    rig.change("roll_out", launch="v2")
    while rig.busy:
        rig.tick()
        engines = [engine for engine in rig.world.engines if engine.serves]
        prefill, decode = ({e.compat for e in engines if e.role == role} for role in ("prefill", "decode"))
        assert prefill & decode, "no prefill and decode engine fit each other"
    assert {engine.launch for engine in rig.world.engines if engine.wanted} == {"v2"}
    assert (starts(rig), rig.outcomes) == (8, ["done: 4 steps done"])


def test_without_free_gpus_an_old_engine_goes_first() -> None:
    rig = Rig(sizes={("prefill", "main"): 4, ("decode", "main"): 4})
    settled(rig)
    rig.change("roll_out", launch="v2")
    rig.tick()
    assert [type(action) for action in rig.plan.actions] == [Retire]
    settled(rig, 600)
    assert {engine.launch for engine in rig.world.engines if engine.wanted} == {"v2"}


def test_no_old_engine_goes_for_one_that_finds_no_room() -> None:
    rig = Rig(sizes={("prefill", "main"): 4, ("decode", "main"): 4})
    settled(rig)
    rig._world = replace(rig.world, nodes=tuple(replace(node, cordoned=True) for node in rig.world.nodes))
    rig.change("roll_out", launch="v2")
    rig.tick(20)
    assert roles(rig) == {"prefill": 4, "decode": 4}
    assert "serves on, as there would be no room" in rig.plan.waiting["m/prefill"]
    assert "n0: is cordoned" in rig.plan.waiting["m/prefill"]
    rig._world = replace(rig.world, nodes=tuple(replace(node, cordoned=False) for node in rig.world.nodes))
    settled(rig, 600)
    assert {engine.launch for engine in rig.world.engines if engine.wanted} == {"v2"}


def test_an_engine_that_is_held_is_replaced_too() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    held(rig, "decode")
    rig.change("roll_out", launch="v2")
    settled(rig, 600)
    assert {engine.launch for engine in rig.world.engines if engine.wanted} == {"v2"}


def test_an_engine_that_is_held_moves_where_its_pool_cannot_spare_another() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    held(rig, "decode")
    settled(begun(rig, prefill=3, decode=1))
    assert roles(rig) == {"prefill": 2, "decode": 1}, "the floor of decode is served"
    assert rig.outcomes == ["done: 1 step done"]


def test_an_engine_that_is_held_stays_where_another_can_be_spared() -> None:
    rig = Rig(sizes={("prefill", "main"): 1, ("decode", "main"): 4})
    settled(rig)
    held(rig, "decode")
    settled(begun(rig, prefill=2, decode=3))
    assert roles(rig) == {"prefill": 2, "decode": 2}


@pytest.mark.parametrize("prefill", [2, 3])
def test_a_pool_that_shrinks_keeps_those_that_serve_or_will(prefill: int) -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    held(rig, "decode")
    (one,) = (each for each in rig.world.engines if each.serves and each.role == "decode")
    rig.fleet[one.ranks[0].node].crash(one.id)
    settled(begun(rig, prefill=prefill, decode=1))
    assert roles(rig) == {"prefill": prefill, "decode": 1}


def test_a_launch_that_does_not_start_is_taken_back() -> None:
    rig = Rig(sizes=PD)
    settled(rig)
    rig.change("roll_out", launch="v2")
    for node in rig.fleet.values():
        node.broken = True
    for _ in range(200):
        rig.tick()
        if rig.outcomes:
            break
    assert roles(rig) == {"prefill": 2, "decode": 2}
    assert rig.outcomes[0].startswith("rolled_back: 2 of 4 steps failed: replace")
    assert starts(rig) == 4 + 5


def test_pools_of_other_shapes_exchange_gpus_one_engine_after_the_other() -> None:
    rig = Rig(sizes={("prefill", "main"): 4, ("decode", "main"): 4}, decode="other")
    settled(rig)
    begun(rig, prefill=6, decode=2)
    lowest = 8
    while rig.busy:
        rig.tick()
        lowest = min(lowest, sum(roles(rig).values()))
    assert roles(rig) == {"prefill": 6, "decode": 2}
    assert lowest == 7


def test_with_free_gpus_the_new_engine_is_there_before_the_old_one_goes() -> None:
    rig = Rig(sizes={("prefill", "main"): 2, ("decode", "main"): 2}, decode="other")
    settled(rig)
    begun(rig, prefill=3, decode=1).tick()
    assert [type(action) for action in rig.plan.actions if not hasattr(action, "verb")] == [Create]
    lowest = 4
    while rig.busy:
        rig.tick()
        lowest = min(lowest, sum(roles(rig).values()))
    assert lowest == 4

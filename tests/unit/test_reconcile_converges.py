"""Whatever happens to nodes, routers, clocks and messages while pools, modes, arms and launches change: the invariants of
tests.unit.fleet_rig hold at every action, no engine is stopped with work in it, and once it stops happening every operation
ends and the fleet becomes what is desired."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from controlplane.core.plan import Plan
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from tests.unit.fleet_rig import NODES, ROLES, Rig

MODES: tuple[Mode, ...] = ("monolithic", "disaggregated", "conditional")
SIZE = st.integers(1, 3)
NOWHERE_TO_STAY = ("roll_out", "set_canary", "end_canary")
"""Operations whose cancelling is refused (control.actions.steering): half-way they would leave launches or arms mixed."""


class Fleet(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(MODES), first=SIZE, second=SIZE, mixed=st.sampled_from(("v1", "v1", "whole")))
    def begin(self, mode: Mode, first: int, second: int, mixed: str) -> None:
        sizes = dict(zip(((role, "main") for role in ROLES_OF_MODE[mode]), (first, second), strict=False))
        self.rig = Rig(mode, sizes, mixed=mixed)
        self.rig.tick(6)

    # --- what operators ask for ------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12))
    def time_passes(self, count: int) -> None:
        self.rig.tick(count)

    @precondition(lambda self: not self.rig.busy)
    @rule(first=SIZE, second=SIZE)
    def pools_are_rebalanced(self, first: int, second: int) -> None:
        roles = ((role, "main") for role in ROLES_OF_MODE[self.rig.target.mode])
        self.rig.change("rebalance", sizes=dict(zip(roles, (first, second), strict=False)))

    @precondition(lambda self: not self.rig.busy and not self._arm())
    @rule(mode=st.sampled_from(MODES), first=SIZE, second=SIZE)
    def the_mode_is_changed(self, mode: Mode, first: int, second: int) -> None:
        sizes = {(role, "main"): 0 for role in ROLES}
        sizes |= dict(zip(((role, "main") for role in ROLES_OF_MODE[mode]), (first, second), strict=False))
        self.rig.change("set_mode", mode=mode, sizes=sizes)

    @precondition(lambda self: not self.rig.busy and not self._arm())
    @rule(mode=st.sampled_from(MODES))
    def a_canary_begins(self, mode: Mode) -> None:
        self.rig.change("set_canary", sizes={(role, "canary"): 1 for role in ROLES_OF_MODE[mode]})

    @precondition(lambda self: not self.rig.busy and self._arm())
    @rule()
    def the_canary_ends(self) -> None:
        self.rig.change("end_canary", sizes={(role, "canary"): 0 for role in ROLES})

    @precondition(lambda self: not self.rig.busy)
    @rule(launch=st.sampled_from(("v1", "v2")))
    def a_launch_is_rolled_out(self, launch: str) -> None:
        self.rig.change("roll_out", launch=launch)

    @precondition(lambda self: self.rig.operation and self.rig.operation.state in ("pending", "running"))
    @rule()
    def the_operation_is_paused(self) -> None:
        self.rig.paused(True)

    @precondition(lambda self: self.rig.operation and self.rig.operation.state == "paused")
    @rule()
    def the_operation_is_resumed(self) -> None:
        self.rig.paused(False)

    @precondition(lambda self: self._can_be_cancelled())
    @rule()
    def the_operation_is_cancelled(self) -> None:
        self.rig.cancel()

    def _can_be_cancelled(self) -> bool:
        operation = self.rig.operation
        return operation is not None and operation.state in ("running", "paused") and operation.verb not in NOWHERE_TO_STAY

    # --- what happens to the fleet ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.rig.running())
    @rule(data=st.data())
    def an_engine_crashes(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(self.rig.running()))
        for node in self.rig.fleet.values():
            node.crash(engine)

    @precondition(lambda self: self.rig.running())
    @rule(data=st.data(), running=st.integers(0, 2))
    def an_engine_gets_or_loses_work(self, data: st.DataObject, running: int) -> None:
        engine = data.draw(st.sampled_from(self.rig.running()))
        if running and self.rig.router_listed.get(engine) != "ready":
            return  # the router sends it nothing
        for node in self.rig.fleet.values():
            node.work(engine, running)

    @rule(name=st.sampled_from(NODES))
    def a_node_goes_silent_or_speaks_again(self, name: str) -> None:
        self.rig.silent ^= {name}

    @rule(name=st.sampled_from(NODES))
    def a_node_loses_its_engines_and_its_memory(self, name: str) -> None:
        self.rig.fleet[name].engines.clear()

    @rule()
    def the_router_hangs_or_follows_again(self) -> None:
        self.rig.router_follows = not self.rig.router_follows

    @rule()
    def the_broker_loses_messages_or_not(self) -> None:
        self.rig.lose_messages = not self.rig.lose_messages

    @precondition(lambda self: self.rig.old_commands)
    @rule(data=st.data())
    def an_old_command_comes_again(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.rig.old_commands))
        if command.verb == "start" or command.engine not in self._with_work():
            self.rig.fleet[command.node].obey(command, self.rig.now)

    @rule()
    def control_is_killed_and_started_again(self) -> None:
        self.rig.forget()

    @rule(name=st.sampled_from(NODES), broken=st.booleans())
    def a_node_breaks_or_is_mended(self, name: str, broken: bool) -> None:
        self.rig.fleet[name].broken = broken

    @rule()
    def kv_moves_no_more_or_again(self) -> None:
        self.rig.kv_moves = not self.rig.kv_moves

    @rule(step_s=st.sampled_from((-5.0, 5.0)))
    def the_clock_jumps(self, step_s: float) -> None:
        self.rig.now += step_s

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _arm(self) -> bool:
        return any(size for (_, arm), size in self.rig.sizes().items() if arm == "canary")

    def _with_work(self) -> set[str]:
        return {key[0] for node in self.rig.fleet.values() for key, fact in node.engines.items() if fact.running}

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        rig.silent, rig.lose_messages, rig.router_follows, rig.kv_moves = set(), False, True, True
        for node in rig.fleet.values():
            node.broken = False
            for engine, _ in list(node.engines):
                node.work(engine, 0)
        if rig.operation and rig.operation.state == "paused":
            rig.paused(False)
        for _ in range(10):
            rig.try_failed_ones_again()
            rig.tick(60)
            if rig.plan == Plan() and not rig.busy:
                break
        assert not rig.busy, (rig.operation, rig.plan)
        assert rig.plan == Plan(), rig.plan
        assert rig.served == rig.target.mode
        for pool in rig.world.pools:
            ready = [each for each in rig.world.members.get(pool.key, ()) if each.serves and each.launch == pool.launch]
            assert len(ready) == pool.desired, pool
        assert sorted(rig.running()) == sorted(id for id, state in rig.listed.items() if state == "ready")
        assert all(not engine.holds_gpus for engine in rig.world.engines if not engine.wanted)


def test_the_fleet_becomes_what_is_desired() -> None:
    run_state_machine_as_test(Fleet, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))

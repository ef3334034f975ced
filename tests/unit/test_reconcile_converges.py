"""Whatever happens to nodes, routers and pools: once it stops happening, the fleet becomes what is desired, and no engine is
ever stopped with work in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from controlplane.core.fake_node import FakeNode
from controlplane.core.lifecycle import ENGINE, move
from controlplane.core.observe import judge_nodes, observe_engine
from controlplane.core.plan import Create, Halt, Plan, Release, Restart, Retire, Send
from controlplane.core.protocol import AgentFact, Command, EngineSpec, ModelRoute, Rank, RouterFact
from controlplane.core.reconcile import reconcile
from controlplane.core.table import build_table
from controlplane.core.world import DrainMark, EngineState, GpuState, NodeState, PoolState, Sent, World

NODES = tuple(f"n{i}" for i in range(4))
ROLES = ("prefill", "decode")


@dataclass
class Rig:
    """Rows, fake nodes and one router in memory; applies plans as control.apply does, one tick a second."""

    now: float = 1000.0
    nodes: dict[str, FakeNode] = field(default_factory=lambda: {name: FakeNode(name, gpu_count=4) for name in NODES})
    silent: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    pools: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 1))
    engines: dict[str, EngineState] = field(default_factory=dict)
    number: int = 0
    generation: int = 1
    listed: dict[str, str] = field(default_factory=dict)
    router_follows: bool = True
    router_generation: int = 1
    router_listed: dict[str, str] = field(default_factory=dict)
    drains: dict[str, DrainMark] = field(default_factory=dict)
    sent: dict[Sent, float] = field(default_factory=dict)
    lose_commands: bool = False
    plan: Plan = field(default_factory=Plan)

    def world(self) -> World:
        taken = {uuid: engine.id for engine in self.engines.values() for rank in engine.ranks for uuid in rank.gpus}
        return World(
            self.now,
            0.0,
            models=(ModelRoute("m", "disaggregated"),),
            pools=tuple(PoolState("m", role, size, tensor_parallel=2) for role, size in self.pools.items()),
            nodes=tuple(
                NodeState(
                    name, lost=name in self.lost, seen_at=1.0, fact=None if name in self.silent else node.fact(self.now)
                )
                for name, node in self.nodes.items()
            ),
            gpus=tuple(
                GpuState(gpu.uuid, name, gpu.index, gpu.kind, taken.get(gpu.uuid, ""))
                for name, node in self.nodes.items()
                for gpu in node.gpus
            ),
            engines=tuple(self.engines.values()),
            routers=(RouterFact("r1", "b", 1, self.now, 0, self.router_generation),),
            stamp=(0, self.generation),
            serving_in_table=frozenset(id for id, state in self.listed.items() if state == "ready"),
            drains=self.drains,
            sent={key: at for key, at in self.sent.items() if self.now - at <= 5},
        )

    def fact(self, node: FakeNode) -> AgentFact | None:
        return None if node.name in self.silent else node.fact(self.now)

    def tick(self) -> None:
        self.now += 1
        for node in self.nodes.values():
            node.step(self.now)
        world = self.world()
        self.lost = {name for name, (lost, _) in judge_nodes(world).items() if lost}
        world = self.world()
        self.engines = {engine.id: observe_engine(engine, world) for engine in world.engines}
        self.plan = reconcile(self.world())
        self.drains = dict(self.plan.drains)
        for action in self.plan.actions:
            self.apply(action)
        table, _ = build_table((ModelRoute("m", "disaggregated"),), self.engines.values(), {}, (0, 1))
        listed = {engine.id: engine.state for engine in table.models[0].engines}
        if listed != self.listed:
            self.listed = listed
            self.generation += 1
        if self.router_follows:
            self.router_generation, self.router_listed = self.generation, self.listed

    def apply(self, action: object) -> None:
        match action:
            case Create():
                self.number += 1
                id = f"e-{self.number}"
                ranks = (Rank(action.placement.node, action.placement.gpus),)
                made = EngineState(id, "m", action.role, self.number, ranks, tensor_parallel=2, state_since=self.now)
                self.engines[id] = made
            case Retire():
                self.change(action.engine, wanted=False)
            case Restart():
                engine = self.engines[action.engine]
                state = move(ENGINE, engine.state, "starting")
                self.change(engine.id, state=state, state_since=self.now, spec_generation=engine.spec_generation + 1)
            case Halt():
                engine = self.engines[action.engine]
                if engine.id in self.running():
                    assert self.router_listed.get(engine.id) != "ready", "a router could still choose it"
                self.change(engine.id, state=move(ENGINE, engine.state, action.state), state_since=self.now)
            case Release():
                engine = self.engines[action.engine]
                self.change(engine.id, ranks=tuple(Rank(rank.node, ()) for rank in engine.ranks))
            case Send():
                self.send(action)

    def change(self, id: str, **changes: object) -> None:
        self.engines[id] = replace(self.engines[id], **changes)  # type: ignore[arg-type]

    def send(self, action: Send) -> None:
        self.sent[Sent(action.engine, action.verb, action.generation, action.rank)] = self.now
        if self.lose_commands:
            return
        node = self.nodes[action.node]
        fact = node.engines.get((action.engine, action.rank))
        if action.verb == "stop" and fact and fact.state in ("ready", "draining"):
            assert not fact.running, f"{action.engine} was stopped with work in it: {action.reason}"
        spec = None
        if action.verb == "start":
            row = self.engines[action.engine]
            spec = EngineSpec(row.id, "m", "s", "nixl", row.ranks, "simulated", row.spec_generation, row.incarnation)
        node.obey(Command(action.node, action.verb, self.now, action.engine, action.generation, action.rank, spec), self.now)

    def running(self) -> list[str]:
        return [
            key[0]
            for node in self.nodes.values()
            for key, fact in node.engines.items()
            if fact.state in ("ready", "draining")
        ]


class Fleet(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.rig = Rig()
        self.time_passes(4)

    @rule(count=st.integers(1, 12))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            self.rig.tick()

    @rule(role=st.sampled_from(ROLES), size=st.integers(0, 3))
    def a_pool_is_scaled(self, role: str, size: int) -> None:
        self.rig.pools[role] = size

    @precondition(lambda self: self.rig.running())
    @rule(data=st.data())
    def an_engine_crashes(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(self.rig.running()))
        for node in self.rig.nodes.values():
            node.crash(engine)

    @precondition(lambda self: self.rig.running())
    @rule(data=st.data(), running=st.integers(0, 2))
    def an_engine_gets_or_loses_work(self, data: st.DataObject, running: int) -> None:
        engine = data.draw(st.sampled_from(self.rig.running()))
        if running and self.rig.router_listed.get(engine) != "ready":
            return  # the router sends it nothing
        for node in self.rig.nodes.values():
            node.work(engine, running)

    @rule(name=st.sampled_from(NODES))
    def a_node_goes_silent_or_speaks_again(self, name: str) -> None:
        self.rig.silent ^= {name}

    @rule(name=st.sampled_from(NODES))
    def a_node_loses_its_engines_and_its_memory(self, name: str) -> None:
        self.rig.nodes[name].engines.clear()

    @rule()
    def the_router_hangs_or_follows_again(self) -> None:
        self.rig.router_follows = not self.rig.router_follows

    @rule()
    def the_broker_loses_commands_or_not(self) -> None:
        self.rig.lose_commands = not self.rig.lose_commands

    @rule()
    def control_is_killed_and_started_again(self) -> None:
        self.rig.drains, self.rig.sent = {}, {}

    @rule(name=st.sampled_from(NODES), broken=st.booleans())
    def a_node_breaks_or_is_mended(self, name: str, broken: bool) -> None:
        self.rig.nodes[name].broken = broken

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held = [uuid for engine in self.rig.engines.values() for rank in engine.ranks for uuid in rank.gpus]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        rig.silent, rig.lose_commands, rig.router_follows = set(), False, True
        for node in rig.nodes.values():
            node.broken = False
            for id, _ in list(node.engines):
                node.work(id, 0)
        for id, engine in rig.engines.items():
            if engine.state == "failed":
                rig.change(id, failures=0, retry_at=None)  # an operator says: try again
        for _ in range(150):
            rig.tick()
        assert rig.plan == Plan(), rig.plan
        for role, size in rig.pools.items():
            ready = [e for e in rig.engines.values() if (e.role, e.state, e.wanted) == (role, "ready", True)]
            assert len(ready) == size
        assert sorted(rig.running()) == sorted(id for id, state in rig.listed.items() if state == "ready")
        assert all(not e.holds_gpus for e in rig.engines.values() if not e.wanted)


def test_the_fleet_becomes_what_is_desired() -> None:
    run_state_machine_as_test(Fleet, settings=settings(max_examples=100, stateful_step_count=20, deadline=None))

"""A fleet in memory with all the trouble a fleet has: core.rehearsal, but nodes fall silent, commands and probes get lost or
come twice, routers hang, KV does not move, clocks jump. One model, and one operation at a time, carried out as the control
loop does, with every invariant checked at every action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from controlplane.core.fake_node import FakeNode
from controlplane.core.lifecycle import ENDED, OVER, SERVING
from controlplane.core.observe import judge_nodes, observe_engine
from controlplane.core.pairs import peers_listed
from controlplane.core.plan import Action, BeginMove, Create, FinishMove, Flip, Halt, Plan, Probe, Restart, Retire, Send
from controlplane.core.progress import OperationState, Scene, StepState, advance
from controlplane.core.protocol import ROLES_OF_MODE, Command, EngineLoad, EngineSpec, Mode, ModelRoute, RouterFact
from controlplane.core.ramp import weights
from controlplane.core.rehearsal import Rehearsal
from controlplane.core.table import build_table
from controlplane.core.world import GpuState, NodeState, PairState, PoolKey, PoolState, Sent, Target, World

NODES = tuple(f"n{i}" for i in range(4))
GPUS_PER_NODE = 4
TP = 2
ROLES = ("mixed", "prefill", "decode")
Sizes = Mapping[tuple[str, str], int]
"""(role, arm) -> engines."""


def first_world(mode: Mode, sizes: Sizes, launches: Mapping[str, str]) -> World:
    pools = tuple(
        PoolState("m", role, sizes.get((role, arm), 0), TP, arm=arm, launch=launches.get(role, "v1"))
        for arm in ("main", "canary")
        for role in ROLES
    )
    gpus = tuple(GpuState(f"{n}-gpu-{i}", n, i, "h100-sxm") for n in NODES for i in range(GPUS_PER_NODE))
    model = ModelRoute("m", mode, connector="nixl")
    nodes = tuple(NodeState(name, seen_at=1.0) for name in NODES)
    return World(1000.0, 0.0, models=(model,), pools=pools, nodes=nodes, gpus=gpus, targets={"m": Target(mode)})


class Rig(Rehearsal):
    def __init__(self, mode: Mode = "disaggregated", sizes: Sizes | None = None, **launches: str) -> None:
        super().__init__(first_world(mode, sizes or {("prefill", "main"): 1, ("decode", "main"): 1}, launches), ["m"])
        self.fleet = {name: FakeNode(name, gpu_count=GPUS_PER_NODE) for name in NODES}
        self._nodes = self.fleet
        self.silent: set[str] = set()
        self.router_follows = True
        self.lose_messages = False
        self.kv_moves = True
        self.queue = ""
        """What probes wait behind, in words."""
        self.broken_kv: set[str] = set()
        self.listed: dict[str, str] = {}
        self.router_listed: dict[str, str] = {}
        self.generation = self.router_generation = 1
        self.sent: dict[Sent, float] = {}
        self.old_commands: list[Command] = []
        self.plan = Plan()
        self.operation: OperationState | None = None
        self.before: tuple[Mode, dict[PoolKey, PoolState]] | None = None
        self.outcomes: list[str] = []
        self.restored = False

    # --- what operators do -----------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        return self._world

    @property
    def target(self) -> Target:
        return self._world.targets["m"]

    @property
    def served(self) -> Mode:
        return self._world.models[0].mode

    @property
    def busy(self) -> bool:
        return self.operation is not None

    def sizes(self) -> dict[tuple[str, str], int]:
        return {(pool.role, pool.arm): pool.desired for pool in self._world.pools}

    def change(self, verb: str, *, mode: Mode | None = None, sizes: Sizes | None = None, launch: str = "") -> None:
        """One operation as `control.actions` writes it."""
        assert not self.busy
        self.before = (self.target.mode, {pool.key: pool for pool in self._world.pools})
        self._desire(mode or self.target.mode, sizes or {}, launch)
        steps = list(self._steps(launch))
        if self.served != self.target.mode:
            steps.append(("switch", "", "main", ""))
        states = tuple(
            StepState(i, what, role, engine, "waiting", arm=arm) for i, (what, role, arm, engine) in enumerate(steps)
        )
        self.operation = OperationState(len(self.outcomes), "m", "pending", states, verb=verb)

    def _desire(self, mode: Mode, sizes: Sizes, launch: str = "") -> None:
        pools = tuple(
            replace(pool, desired=sizes.get((pool.role, pool.arm), pool.desired), launch=launch or pool.launch)
            for pool in self._world.pools
        )
        targets = {"m": Target(mode, since=self.now)}
        self._world = replace(self._world, pools=pools, targets=targets)

    def _steps(self, launch: str) -> Iterator[tuple[str, str, str, str]]:
        """(verb, role, arm, engine) as `control.actions.sizes` finds them."""
        if launch:
            yield from (("replace", each.role, each.arm, each.id) for each in self._world.engines if each.wanted)
        missing = {pool.key: pool.desired - len(self._world.members.get(pool.key, ())) for pool in self._world.pools}
        launches = {pool.key: pool.launch for pool in self._world.pools}
        for to in missing:
            for source in missing:
                while missing[to] > 0 > missing[source] and launches[to] == launches[source]:
                    missing[to] -= 1
                    missing[source] += 1
                    yield ("retask", to[1], to[2], "")
        for (_, role, arm), count in missing.items():
            yield from [("start" if count > 0 else "stop", role, arm, "")] * abs(count)

    def paused(self, paused: bool) -> None:
        assert self.operation
        self.operation = replace(self.operation, state="paused" if paused else "running")

    def cancel(self) -> None:
        """What is there now is what is desired."""
        assert self.operation
        here = {key[1:]: len(members) for key, members in self._world.members.items()}
        desired = {size: here.get(size, 0) for size in self.sizes()}
        self._desire(self.served, desired)
        self.outcomes.append("cancelled")
        self.operation = None

    def forget(self) -> None:
        """Control starts again: what it only remembered is gone."""
        self.sent = {}
        self._world = replace(self._world, drains={})

    def try_failed_ones_again(self) -> None:
        for engine in self._world.engines:
            if engine.state == "failed":
                self._change(engine.id, failures=0, retry_at=None)

    # --- one tick --------------------------------------------------------------------------------------------------------

    def tick(self, count: int = 1) -> Plan:
        for _ in range(count):
            if self.operation:
                self._target(paused=self.operation.state == "paused" or self._move_given_up())
            self.plan = self._tick()
            self._publish()
            self._advance()
            self.check()
        return self.plan

    def _target(self, **changes: bool) -> None:
        self._world = replace(self._world, targets={"m": replace(self.target, **changes)})

    def _move_given_up(self) -> bool:
        assert self.operation
        open_moves = {step.engine for step in self.operation.steps if step.verb == "retask" and step.state == "running"}
        return any(each.move_phase == "aborted" and each.id in open_moves for each in self._world.engines)

    def _see(self) -> None:
        facts = tuple(
            replace(node, fact=None if node.name in self.silent else self.fleet[node.name].fact(self.now))
            for node in self._world.nodes
        )
        loads = tuple(
            EngineLoad(key[0], fact.incarnation, fact.running)
            for node in self.fleet.values()
            for key, fact in node.engines.items()
            if fact.running
        )
        world = replace(
            self._world,
            now=self.now,
            nodes=facts,
            routers=(RouterFact("r1", "b", 1, self.now, 0, self.router_generation, loads=loads),),
            stamp=(0, self.generation),
            serving_in_table=frozenset(id for id, state in self.listed.items() if state == "ready"),
            sent={key: at for key, at in self.sent.items() if abs(self.now - at) <= 5},
        )
        verdicts = judge_nodes(world)
        nodes = tuple(replace(node, lost=verdicts[node.name][0]) for node in world.nodes)
        world = replace(world, nodes=nodes)
        self._world = replace(world, engines=tuple(observe_engine(engine, world) for engine in world.engines))

    def _publish(self) -> None:
        world = self._world
        table, left_out = build_table(
            world.models, world.engines, {}, (0, 1), peers=peers_listed(world, world.models), weights=weights(world)
        )
        assert not left_out
        self.table = table
        listed = {engine.id: engine.state for engine in table.models[0].engines}
        if listed != self.listed:
            self.listed = dict(listed)
            self.generation += 1
        if self.router_follows:
            self.router_generation, self.router_listed = self.generation, self.listed

    def _advance(self) -> None:
        if self.operation is None:
            return
        roles = {engine.id: engine.role for engine in self.table.models[0].engines}
        world = replace(self._world, stamp=(0, self.generation), serving_in_table=frozenset(self._offered()))
        modes = {"m": self.table.models[0].mode}
        self.restored |= self.operation.state == "rolling_back"
        new = advance(self.operation, Scene(world, self.plan.waiting, roles, modes, self.plan.problems))
        if new.state == "rolling_back" and self.operation.state != "rolling_back":
            assert self.before
            mode, pools = self.before
            self._world = replace(
                self._world,
                pools=tuple(replace(pools[pool.key]) for pool in self._world.pools),
                targets={"m": Target(mode, since=self.now)},
            )
            skipped = tuple(replace(step, state="skipped") if step.state == "waiting" else step for step in new.steps)
            new = replace(new, steps=skipped)
        self.operation = new
        if new.state in ENDED:
            self.outcomes.append(f"{new.state}: {new.outcome}")
            self.operation = None
            self._target(paused=False)

    def _offered(self) -> list[str]:
        return [id for id, state in self.listed.items() if state == "ready"]

    # --- how actions are carried out -------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        usable = self.usable()
        self._check_floors(action)
        if isinstance(action, Halt) and action.engine in self.running():
            assert self.router_listed.get(action.engine) != "ready", "a router could still choose it"
        known = {engine.id for engine in self._world.engines}
        if isinstance(action, Restart) and self._world.by_id[action.engine].move_phase in ("", "aborted"):
            self._change(action.engine, move_phase="", move_since=None)
        super()._carry_out(action)
        assert not usable or self.usable() or self._wanted_unusable(), f"no usable pool is left by {action}"
        match action:
            case Create() if not action.surge:
                self._bind("start", action.role, action.arm, next(e.id for e in self._world.engines if e.id not in known))
            case Retire():
                engine = self._world.by_id[action.engine]
                self._bind("stop", engine.role, engine.arm, engine.id)
            case BeginMove() | FinishMove():
                self._bind("retask", action.role, action.arm, action.engine)
            case Flip():
                for engine_id, role, arm in action.engines:
                    self._bind("retask", role, arm, engine_id)

    def _bind(self, verb: str, role: str, arm: str, engine: str) -> None:
        for step in self.operation.steps if self.operation else ():
            if (step.verb, step.role, step.arm, step.engine, step.state) == (verb, role, arm, "", "waiting"):
                assert self.operation
                steps = tuple(replace(each, engine=engine) if each is step else each for each in self.operation.steps)
                self.operation = replace(self.operation, steps=steps)
                return

    def _send(self, action: Send) -> None:
        self.sent[Sent(action.engine, action.verb, action.generation, action.rank)] = self.now
        if self.lose_messages:
            return
        fact = self.fleet[action.node].engines.get((action.engine, action.rank))
        if action.verb == "stop" and fact and fact.state in SERVING:
            assert not fact.running, f"{action.engine} was stopped with work in it: {action.reason}"
        spec = None
        if action.verb == "start":
            row = self._world.by_id[action.engine]
            spec = EngineSpec(row.id, "m", "s", "nixl", row.ranks, "simulated", row.spec_generation, row.incarnation)
        command = Command(action.node, action.verb, self.now, action.engine, action.generation, action.rank, spec)
        self.old_commands.append(command)
        self.fleet[action.node].obey(command, self.now)

    def _prove(self, action: Probe) -> None:
        names = (action.prefill, action.decode)
        numbers = (action.prefill_incarnation, action.decode_incarnation)
        old = next((pair for pair in self._world.pairs if (pair.prefill, pair.decode) == names), None)
        same = old is not None and (old.prefill_incarnation, old.decode_incarnation) == numbers and old.state != "verified"
        pair = PairState(*names, *numbers, "asked", old.attempts if old and same else 0, at=self.now)
        if self.queue:
            pair = replace(pair, reason=self.queue)
        elif not self.lose_messages and set(names) <= set(self.running()):
            works = self.kv_moves and not self.broken_kv & set(names)
            pair = replace(pair, state="verified" if works else "failed", attempts=pair.attempts + 1, reason="no KV came")
        others = tuple(each for each in self._world.pairs if (each.prefill, each.decode) != names)
        self._world = replace(self._world, pairs=(*others, pair))

    def running(self) -> list[str]:
        return [key[0] for node in self.fleet.values() for key, fact in node.engines.items() if fact.state in SERVING]

    # --- what must always hold -------------------------------------------------------------------------------------------

    def usable(self) -> bool:
        """Whether every pool that the served mode needs has a serving engine."""
        serving = self._serving()
        return all(serving["m", role, "main"] for role in ROLES_OF_MODE[self.served])

    def _wanted_unusable(self) -> bool:
        return any(not self.sizes()[role, "main"] for role in ROLES_OF_MODE[self.served]) and self.served == self.target.mode

    def _check_floors(self, action: Action) -> None:
        """Nothing that we do takes the last engines of a pool below its floor."""
        if not isinstance(action, BeginMove | Retire):
            return
        engine = self._world.by_id[action.engine]
        if not engine.serves:
            return
        pool = next(pool for pool in self._world.pools if pool.key == engine.pool)
        left = self._serving()[engine.pool] - 1
        assert left >= min(pool.floor, pool.desired), f"{action} leaves {left} in {pool}"

    def check(self) -> None:
        engines = self._world.engines
        held = [uuid for engine in engines for rank in engine.ranks for uuid in rank.gpus]
        assert len(held) == len(set(held)), "a GPU is in two engines"
        for node in self.fleet.values():
            used = [uuid for fact in node.engines.values() if fact.state not in OVER for uuid in fact.gpus]
            assert len(used) == len(set(used)), "two processes are on one GPU"
        for engine_id in self.listed:
            engine = self._world.by_id[engine_id]
            assert engine.state in SERVING, f"the table lists {engine}"
            facts = [fact for fact in self._world.reports(engine) if fact]
            assert all(fact.state in SERVING for fact in facts), f"the table lists {facts}"
        for engine in engines:
            assert engine.move_phase in ("", "aborted") or engine.next_role, engine

"""A change carried out in memory: the plans of `core.reconcile` on fake nodes, until nothing is left to do. Pure.

In a rehearsal every command arrives, every engine starts, every probe finds that KV moved, every router follows at once and
nobody has a request: it shows what is done and in which order, not how long that takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from controlplane.core.lifecycle import ENGINE, observe
from controlplane.core.observe import observe_engine
from controlplane.core.plan import (
    AbortMove,
    Action,
    BeginMove,
    Create,
    FinishMove,
    Flip,
    Halt,
    Plan,
    Probe,
    Release,
    Restart,
    Retire,
    Send,
    Verify,
)
from controlplane.core.preview import PlannedStep, PoolCourse
from controlplane.core.protocol import Command, EngineSpec, Rank
from controlplane.core.reconcile import reconcile
from controlplane.core.rehearsal_nodes import fake_node
from controlplane.core.world import EngineState, GpuState, PairState, PoolKey, World

TICK_S = 1.0
STILL_TICKS = 12
"""Without anything done for so long (longer than a command is waited for) nothing more will be."""
MAX_TICKS = 2000
MAX_WORK = 200_000
"""Ticks times engines."""
MAX_STEPS = 100
"""A very large change is rehearsed for its first steps only."""


class Rehearsal:
    """`steps`, `courses`, `waits` and `complete` are what `Preview` has of them."""

    def __init__(self, world: World, models: Iterable[str]) -> None:
        """Of `world`: the engines of `models`, and nodes with one of them or a free GPU; what others hold stays taken."""
        names = set(models)
        self.steps: list[PlannedStep] = []
        self.waits: tuple[str, ...] = ()
        self.complete = True
        self.now = world.now
        engines = tuple(each for each in world.engines if each.model in names)
        near = {rank.node for each in engines for rank in each.ranks} | {gpu.node for gpu in world.gpus if not gpu.engine}
        self._world = replace(
            world,
            link_since=0.0,
            models=tuple(each for each in world.models if each.name in names),
            pools=tuple(each for each in world.pools if each.model in names),
            nodes=tuple(each for each in world.nodes if each.name in near),
            gpus=tuple(each for each in world.gpus if each.node in near),
            engines=engines,
            routers=(),
        )
        self._nodes = {node.name: fake_node(node, self._world, world.now) for node in world.nodes if not node.lost}
        self._compat = {engine.launch: engine.compat for engine in self._world.engines if engine.compat}
        self._start = self._serving()
        self._lowest = Counter(self._start)
        self._made = 0

    def run(self) -> None:
        """Until nothing is left to do, or nothing happens any more."""
        still = 0
        allowed = min(MAX_TICKS, MAX_WORK // max(1, len(self._world.engines)))
        for _ in range(allowed):
            plan = self._tick()
            busy = bool(plan.actions) or self._unsettled()
            still = 0 if plan.actions else still + 1
            if len(self.steps) >= MAX_STEPS and busy:
                break
            if not busy or still >= STILL_TICKS:
                self.waits = tuple(f"{subject}: {why}" for subject, why in sorted(plan.waiting.items()) if why)
                return
        self.complete = False

    @property
    def courses(self) -> tuple[PoolCourse, ...]:
        end = self._serving()
        return tuple(
            PoolCourse(pool.name, self._start[pool.key], self._lowest[pool.key], end[pool.key], pool.floor)
            for pool in self._world.pools
        )

    def _tick(self) -> Plan:
        self.now += TICK_S
        for node in self._nodes.values():
            node.step(self.now)
            for key, fact in node.engines.items():
                if fact.compat == "fake":
                    node.engines[key] = replace(fact, compat=self._compat_of(key[0]))
        self._see()
        plan = reconcile(self._world)
        self._world = replace(self._world, drains=plan.drains)
        for action in plan.actions:
            self._carry_out(action)
        serving = self._serving()
        for pool in self._world.pools:
            self._lowest[pool.key] = min(self._lowest[pool.key], serving[pool.key])
        return plan

    def _see(self) -> None:
        """What the agents tell now, onto the engines."""
        nodes = tuple(
            replace(node, fact=self._nodes[node.name].fact(self.now) if node.name in self._nodes else None)
            for node in self._world.nodes
        )
        world = replace(
            self._world,
            now=self.now,
            nodes=nodes,
            serving_in_table=frozenset(engine.id for engine in self._world.engines if engine.serves),
        )
        self._world = replace(world, engines=tuple(observe_engine(engine, world) for engine in world.engines))

    def _serving(self) -> Counter[PoolKey]:
        return Counter((each.model, each.role, each.arm) for each in self._world.engines if each.serves)

    def _unsettled(self) -> bool:
        switching = any(self._world.target(model).mode != model.mode for model in self._world.models)
        coming_or_going = (
            each.state not in ("ready", "lost", "failed") if each.wanted else each.holds_gpus for each in self._world.engines
        )
        return switching or any(coming_or_going) or any(each.moving for each in self._world.engines)

    def _compat_of(self, engine: str) -> str:
        launch = self._world.by_id[engine].launch if engine in self._world.by_id else ""
        return self._compat.setdefault(launch, f"new {launch}")

    # --- what `control.apply` and agents do ------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        match action:
            case Create():
                self._create(action)
            case Retire():
                self._say("stop", action.engine, reason=action.reason)
                self._change(action.engine, wanted=False)
            case Restart():
                generation = self._world.by_id[action.engine].spec_generation + 1
                self._become(action.engine, "starting", spec_generation=generation)
            case Halt():
                self._become(action.engine, action.state)
            case Release():
                self._release(action.engine)
            case BeginMove():
                self._say("retask", action.engine, action.role, action.arm, action.reason)
                self._move(action.engine, "leaving", next_role=action.role, next_arm=action.arm)
                self._forget_pairs(action.engine)
            case Verify():
                self._move(action.engine, "verifying")
            case FinishMove():
                self._move(action.engine, "", role=action.role, arm=action.arm, next_role="", next_arm="")
            case AbortMove():
                self._move(action.engine, "aborted", next_role="", next_arm="", reason=action.reason)
            case Probe():
                self._prove(action)
            case Flip():
                self._flip(action)
            case Send():
                self._send(action)

    def _say(self, verb: str, engine: str, role: str = "", arm: str = "", reason: str = "") -> None:
        row = self._world.by_id[engine]
        there = row.ranks[0].node if row.ranks else ""
        label = f"{row.role[:1].upper()}{row.number}"
        known = "" if engine.startswith("new-") else engine
        self.steps.append(PlannedStep(verb, known, label, role or row.role, arm or row.arm, there, reason))

    def _change(self, engine: str, **changes: object) -> None:
        changed = replace(self._world.by_id[engine], **changes)  # type: ignore[arg-type]
        engines = tuple(changed if each.id == engine else each for each in self._world.engines)
        self._world = replace(self._world, engines=engines)

    def _become(self, engine: str, state: str, **changes: object) -> None:
        old = self._world.by_id[engine].state
        self._change(engine, state=observe(ENGINE, old, state), state_since=self.now, **changes)

    def _move(self, engine: str, phase: str, **changes: object) -> None:
        self._change(engine, move_phase=phase, move_since=self.now, **changes)

    def _create(self, action: Create) -> None:
        pool = next(each for each in self._world.pools if each.key == (action.model, action.role, action.arm))
        mine = [each for each in self._world.engines if each.model == action.model]
        self._made += 1
        engine = EngineState(
            id=f"new-{self._made}",
            model=action.model,
            role=action.role,
            arm=action.arm,
            number=max((each.number for each in mine), default=0) + 1,
            ranks=action.placement.ranks,
            tensor_parallel=pool.tensor_parallel,
            state_since=self.now,
            gpu_kind=action.placement.kind,
            launch=pool.launch,
        )
        self._world = replace(self._world, engines=(*self._world.engines, engine))
        self._hold(action.placement.gpus, engine.id)
        self._say("start", engine.id, reason=action.reason)

    def _release(self, engine: str) -> None:
        row = self._world.by_id[engine]
        self._hold([uuid for rank in row.ranks for uuid in rank.gpus], "")
        self._change(engine, ranks=tuple(Rank(rank.node, ()) for rank in row.ranks))

    def _hold(self, gpus: Iterable[str], engine: str) -> None:
        meant = set(gpus)
        held: tuple[GpuState, ...] = tuple(
            replace(gpu, engine=engine) if gpu.uuid in meant else gpu for gpu in self._world.gpus
        )
        self._world = replace(self._world, gpus=held)

    def _forget_pairs(self, engine: str) -> None:
        left = tuple(pair for pair in self._world.pairs if engine not in (pair.prefill, pair.decode))
        self._world = replace(self._world, pairs=left)

    def _prove(self, action: Probe) -> None:
        names = (action.prefill, action.decode)
        pair = PairState(*names, action.prefill_incarnation, action.decode_incarnation, "verified", at=self.now)
        others = tuple(each for each in self._world.pairs if (each.prefill, each.decode) != names)
        self._world = replace(self._world, pairs=(*others, pair))

    def _flip(self, action: Flip) -> None:
        old = next(model for model in self._world.models if model.name == action.model)
        if old.mode != action.mode:
            self.steps.append(PlannedStep("switch", role=action.mode, reason=action.reason))
        models = tuple(replace(model, mode=action.mode) if model is old else model for model in self._world.models)
        self._world = replace(self._world, models=models)
        for engine, role, arm in action.engines:
            self._say("retask", engine, role, arm, action.reason)
            self._move(engine, "", role=role, arm=arm, next_role="", next_arm="")

    def _send(self, action: Send) -> None:
        row = self._world.by_id.get(action.engine)
        spec = None
        if action.verb == "start" and row is not None:
            spec = EngineSpec(
                row.id, row.model, "", "nixl", row.ranks, "simulated", row.spec_generation, incarnation_floor=row.incarnation
            )
        command = Command(action.node, action.verb, self.now, action.engine, action.generation, action.rank, spec)
        self._nodes[action.node].obey(command, self.now)

"""The fleet as the control loop sees it: desired rows and observed facts side by side, as plain values.

The loop reads these from PostgreSQL and Valkey; `core.observe`, `core.reconcile`, `core.table` and `core.progress` decide
on them. Times are Unix seconds on the control plane's clock unless a doc says otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from controlplane.core.protocol import AgentFact, EngineFact, Mode, ModelRoute, Rank, RouterFact

MAIN = "main"
"""The arm of everybody but a canary's sessions."""

PoolKey = tuple[str, str, str]
"""(model, role, arm)."""


@dataclass(frozen=True)
class GpuState:
    """One accelerator as recorded; `engine` holds its reservation ("" = free)."""

    uuid: str
    node: str
    index: int
    kind: str
    engine: str = ""


@dataclass(frozen=True)
class NodeState:
    """`fact` is the agent's newest fact, None when it is silent. `seen_at` None: the agent never reported."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    lost: bool = False
    seen_at: float | None = None
    fact: AgentFact | None = None


@dataclass(frozen=True)
class PoolState:
    """`floor`: serving engines that a change leaves in it while it runs. `launch`: digest of what its engines are started
    with now (core.launch). `one_process`: all stages of an engine belong to one process, hence to one node."""

    model: str
    role: str
    desired: int
    tensor_parallel: int = 1
    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    arm: str = MAIN
    floor: int = 1
    launch: str = ""
    pipeline_parallel: int = 1
    one_process: bool = False

    @property
    def ranks_of_an_engine(self) -> tuple[int, int]:
        """(GPUs of each process, processes)."""
        if self.one_process:
            return self.tensor_parallel * self.pipeline_parallel, 1
        return self.tensor_parallel, self.pipeline_parallel

    @property
    def key(self) -> PoolKey:
        return (self.model, self.role, self.arm)

    @property
    def name(self) -> str:
        """As operators are told it, and as Plan.waiting names it."""
        return f"{self.model}/{self.role}" if self.arm == MAIN else f"{self.model}/{self.arm}/{self.role}"


@dataclass(frozen=True)
class EngineState:
    """One engine row. `state` is one of core.lifecycle.ENGINE. `ranks` without GPUs: the reservation was given back.

    `move_phase` is one of core.retask.PHASES and `move_since` when that began; without a phase, or together, since when it
    has its role (None: since its start). `held`: an operator keeps it out of the table. `launch`: digest of what it was
    started with.
    """

    id: str
    model: str
    role: str
    number: int
    ranks: tuple[Rank, ...] = ()
    kind: str = "simulated"
    tensor_parallel: int = 1
    wanted: bool = True
    spec_generation: int = 1
    state: str = "planned"
    state_since: float = 0.0
    reason: str = ""
    incarnation: int = 0
    url: str = ""
    compat: str = ""
    gpu_kind: str = ""
    arm: str = "main"
    weight: float = 1.0
    started_at: float | None = None
    ready_at: float | None = None
    failures: int = 0
    retry_at: float | None = None
    next_role: str = ""
    next_arm: str = ""
    move_phase: str = ""
    move_since: float | None = None
    held: bool = False
    launch: str = ""

    @property
    def pool(self) -> PoolKey:
        """The pool it counts for: while it moves, the one it moves to."""
        return (self.model, self.next_role or self.role, self.next_arm or self.arm)

    @property
    def moving(self) -> bool:
        """It is on its way into another pool and takes no new work."""
        return self.wanted and self.move_phase in ("leaving", "verifying")

    @property
    def serves(self) -> bool:
        """Routers give it new work."""
        return self.state == "ready" and self.wanted and not self.held and not self.moving

    @property
    def gpu_count(self) -> int:
        return sum(len(rank.gpus) for rank in self.ranks)

    @property
    def holds_gpus(self) -> bool:
        return any(rank.gpus for rank in self.ranks)


@dataclass(frozen=True)
class PairState:
    """What is known of handing KV over from one engine to another. `state`: asked, verified or failed. `attempts`: probes
    that had an outcome. `at`: of the outcome, or when it was asked for."""

    prefill: str
    decode: str
    prefill_incarnation: int
    decode_incarnation: int
    state: str
    attempts: int = 0
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Target:
    """What is desired of a model beside its pools. ModelRoute.mode is the mode that is served now.

    `paused`: nothing new is begun for it (its operation is paused, or about to roll back); what has begun goes on and
    healing too. `since`: when its running operation was asked for; what was proven earlier is proven anew.
    """

    mode: Mode
    paused: bool = False
    retiring: bool = False
    since: float = 0.0


@dataclass(frozen=True)
class DrainMark:
    """What control remembers of one drain between ticks; lost with the process, it is only measured again.

    Both are times of scrapes on the node's clock: the newest one when every router had acknowledged, and the first quiet
    one after that.
    """

    acked_scrape: float
    quiet_scrape: float | None = None


@dataclass(frozen=True)
class Sent:
    """A command that was sent and not yet seen to work; kept so that it is repeated seldom, not every tick."""

    engine: str
    verb: str
    generation: int
    rank: int = 0


def over(now: float, since: float | None, limit_s: float) -> bool:
    """Whether `limit_s` have passed since then. A time that far in the future was told by a clock that was set back since:
    it holds nothing up."""
    return since is None or not since - limit_s < now < since + limit_s


@dataclass(frozen=True)
class World:
    """Everything one tick decides on.

    `link_since`: since when control's own link to Valkey has been healthy without a break. `stamp`: the newest published
    table; `draining_in_table`: engines that it lists as draining; `serving_in_table`: those it lists as ready.
    """

    now: float
    link_since: float
    models: tuple[ModelRoute, ...] = ()
    pools: tuple[PoolState, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    engines: tuple[EngineState, ...] = ()
    routers: tuple[RouterFact, ...] = ()
    stamp: tuple[int, int] = (0, 0)
    serving_in_table: frozenset[str] = frozenset()
    drains: Mapping[str, DrainMark] = field(default_factory=dict)
    sent: Mapping[Sent, float] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    """Per model; a model without one is desired as it is served."""
    pairs: tuple[PairState, ...] = ()

    def target(self, model: ModelRoute) -> Target:
        return self.targets.get(model.name) or Target(model.mode)

    @cached_property
    def by_id(self) -> Mapping[str, EngineState]:
        return {engine.id: engine for engine in self.engines}

    @cached_property
    def members(self) -> Mapping[PoolKey, tuple[EngineState, ...]]:
        """Wanted engines by the pool they count for, in order of their rows."""
        found: dict[PoolKey, list[EngineState]] = {}
        for engine in self.engines:
            if engine.wanted:
                found.setdefault(engine.pool, []).append(engine)
        return {key: tuple(engines) for key, engines in found.items()}

    @cached_property
    def of_model(self) -> Mapping[str, tuple[EngineState, ...]]:
        """All engines by model."""
        found: dict[str, list[EngineState]] = {}
        for engine in self.engines:
            found.setdefault(engine.model, []).append(engine)
        return {model: tuple(engines) for model, engines in found.items()}

    @cached_property
    def open_work(self) -> Mapping[str, int]:
        """What routers have open on each engine, as far as they have told: legs and handoffs."""
        found: dict[str, int] = {}
        for router in self.routers:
            for load in router.loads:
                found[load.engine] = found.get(load.engine, 0) + load.in_flight + load.handoffs
        return found

    @cached_property
    def _pairs(self) -> Mapping[tuple[str, str], PairState]:
        """Without those of earlier starts."""
        number = {engine.id: engine.incarnation for engine in self.engines}
        return {
            (pair.prefill, pair.decode): pair
            for pair in self.pairs
            if number.get(pair.prefill) == pair.prefill_incarnation and number.get(pair.decode) == pair.decode_incarnation
        }

    def pair(self, prefill: str, decode: str) -> PairState | None:
        """What is known of this pair as both engines run now."""
        return self._pairs.get((prefill, decode))

    @cached_property
    def _nodes(self) -> dict[str, NodeState]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _facts(self) -> dict[tuple[str, str, int], EngineFact]:
        return {(node.name, fact.id, fact.rank): fact for node in self.nodes if node.fact for fact in node.fact.engines}

    @cached_property
    def failed_pairs(self) -> tuple[PairState, ...]:
        """Of engines as they run now."""
        return tuple(pair for pair in self._pairs.values() if pair.state == "failed")

    def node(self, name: str) -> NodeState | None:
        return self._nodes.get(name)

    def reports(self, engine: EngineState) -> tuple[EngineFact | None, ...]:
        """Per rank, what its agent says about it now; None: nothing, or the agent is silent."""
        return tuple(self._facts.get((rank.node, engine.id, index)) for index, rank in enumerate(engine.ranks))

    def heard(self, engine: EngineState) -> bool:
        """Every node of this engine has a living agent, so that what its facts leave out does not exist."""
        nodes = [self.node(rank.node) for rank in engine.ranks]
        return bool(nodes) and all(node is not None and node.fact is not None for node in nodes)

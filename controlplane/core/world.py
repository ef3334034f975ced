"""The fleet as the control loop sees it: desired rows and observed facts side by side, as plain values.

The loop reads these from PostgreSQL and Valkey; `core.observe`, `core.reconcile`, `core.table` and `core.progress` decide
on them. Times are Unix seconds on the control plane's clock unless a doc says otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from controlplane.core.protocol import AgentFact, EngineFact, ModelRoute, Rank, RouterFact


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
    model: str
    role: str
    desired: int
    tensor_parallel: int = 1
    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineState:
    """One engine row. `state` is one of core.lifecycle.ENGINE. `ranks` without GPUs: the reservation was given back."""

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

    @property
    def holds_gpus(self) -> bool:
        return any(rank.gpus for rank in self.ranks)


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

    @cached_property
    def _nodes(self) -> dict[str, NodeState]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _facts(self) -> dict[tuple[str, str, int], EngineFact]:
        return {(node.name, fact.id, fact.rank): fact for node in self.nodes if node.fact for fact in node.fact.engines}

    def node(self, name: str) -> NodeState | None:
        return self._nodes.get(name)

    def reports(self, engine: EngineState) -> tuple[EngineFact | None, ...]:
        """Per rank, what its agent says about it now; None: nothing, or the agent is silent."""
        return tuple(self._facts.get((rank.node, engine.id, index)) for index, rank in enumerate(engine.ranks))

    def heard(self, engine: EngineState) -> bool:
        """Every node of this engine has a living agent, so that what its facts leave out does not exist."""
        nodes = [self.node(rank.node) for rank in engine.ranks]
        return bool(nodes) and all(node is not None and node.fact is not None for node in nodes)

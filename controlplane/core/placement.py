"""Which GPUs an engine gets. Pure: candidates in, the choice and the reasons against the rest out.

Each pipeline stage of an engine (most have one) takes as many GPUs of one kind as its tensor-parallel degree, on one node.
Filters drop nodes and say why; among those left, the nodes closest to the model's other engines come first (short KV paths:
the node itself, then an equal label `fabric`, then an equal label `zone`), then the fullest that fits (large gaps stay
whole). On a node an aligned, contiguous run of indices is preferred (neighbours share the fast links). Several stages go on
one node if one has room for all of them, else on nodes as `core.spread` chooses: all find their place, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.protocol import Rank
from controlplane.core.spread import CLOSE_LABELS, Site, spread
from controlplane.core.world import GpuState, NodeState, PoolState

MAX_REASONS = 50
"""A refusal tells this many nodes apart."""


@dataclass(frozen=True)
class Want:
    """One engine's demand. Empty `gpu_kinds` or `node_labels` accept any. `peers`: the model's engines per node. `stages`:
    how many times `tensor_parallel` GPUs, each time on one node."""

    tensor_parallel: int
    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    peers: Mapping[str, int] = field(default_factory=dict)
    stages: int = 1


@dataclass(frozen=True)
class Placement:
    """Where one engine goes: a part for each of its processes, all on GPUs of one kind."""

    ranks: tuple[Rank, ...]
    """In order of stages; uuids in order of index."""
    kind: str

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of all parts."""
        return tuple(gpu for rank in self.ranks for gpu in rank.gpus)

    @property
    def node(self) -> str:
        """The one node, or all of them as operators are told them."""
        return " and ".join(dict.fromkeys(rank.node for rank in self.ranks))


Found = tuple[Placement | None, tuple[str, ...]]


class Room:
    """The fleet's GPUs by node, and what is promised of them while one plan is made."""

    def __init__(self, nodes: Iterable[NodeState], gpus: Iterable[GpuState], places: Iterable[tuple[str, str]] = ()) -> None:
        """`places`: (model, node) of each engine there is."""
        self._nodes = sorted(nodes, key=lambda each: each.name)
        self._gpus: dict[str, list[GpuState]] = {}
        for gpu in gpus:
            self._gpus.setdefault(gpu.node, []).append(gpu)
        self._taken: set[str] = {gpu.uuid for here in self._gpus.values() for gpu in here if gpu.engine}
        self._peers: dict[str, Counter[str]] = {}
        for model, node in places:
            self._peers.setdefault(model, Counter())[node] += 1
        self._full: dict[tuple[object, ...], tuple[str, ...]] = {}
        self.placed = 0
        """Engines that took a place since."""

    def find(self, pool: PoolState) -> Found:
        """The best place for one more engine of `pool`, or None with what is missing; `take` then keeps it."""
        shape = (*pool.ranks_of_an_engine, pool.gpu_kinds, tuple(sorted(pool.node_labels.items())))
        if shape in self._full:
            return None, self._full[shape]
        placement, reasons = self.place(self._want(pool))
        if placement is None:
            self._full[shape] = reasons
        return placement, reasons

    def find_without(self, pool: PoolState, engine: str) -> Found:
        """As `find`, once this engine has given its GPUs back: on a cordoned node that helps nobody."""
        freed = {gpu.uuid for here in self._gpus.values() for gpu in here if gpu.engine == engine}
        self._taken -= freed
        found = self.place(self._want(pool))
        self._taken |= freed
        return found

    def _want(self, pool: PoolState) -> Want:
        degree, stages = pool.ranks_of_an_engine
        return Want(degree, pool.gpu_kinds, pool.node_labels, self._peers.get(pool.model, Counter()), stages)

    def take(self, model: str, placement: Placement) -> None:
        """These GPUs are promised to an engine of `model`."""
        self.placed += 1
        self._taken.update(placement.gpus)
        self._peers.setdefault(model, Counter()).update(rank.node for rank in placement.ranks)

    def place(self, want: Want) -> Found:
        """The best place, or None with what is missing on each node."""
        one = self._on_one_node(want)
        placement = one or (self._on_several(want) if want.stages > 1 else None)
        return (placement, ()) if placement else (None, (_summary(want), *self._problems(want)))

    def _on_one_node(self, want: Want) -> Placement | None:
        needed = want.tensor_parallel * want.stages
        closeness = _Closeness(want.peers, self._nodes)
        best: tuple[tuple[object, ...], NodeState, list[GpuState]] | None = None
        for node in self._nodes:
            free = self._free(node)
            if len(free) < needed or _unfit(want, node) or _most(want, free) < needed:
                continue
            rank = (*closeness.of(node), len(free), node.name)
            if best is None or rank < best[0]:
                best = (rank, node, free)
        if best is None:
            return None
        groups = _by_kind(want, best[2])
        kind = next(each for each in _kinds(want, groups) if len(groups.get(each, ())) >= needed)
        return Placement(tuple(_ranks(best[1].name, groups[kind], want.tensor_parallel, want.stages)), kind)

    def _on_several(self, want: Want) -> Placement | None:
        """The first kind of which enough stages find room together."""
        closeness = _Closeness(want.peers, self._nodes)
        fit = [node for node in self._nodes if not _unfit(want, node)]
        free = {node.name: _by_kind(want, self._free(node)) for node in fit}
        for kind in _kinds(want, {kind for groups in free.values() for kind in groups}):
            rooms = {name: groups.get(kind, []) for name, groups in free.items()}
            sites = [
                Site(node.name, node.labels, len(rooms[node.name]) // want.tensor_parallel, closeness.of(node))
                for node in fit
            ]
            chosen = spread(sites, want.stages)
            if chosen:
                found = (_ranks(name, rooms[name], want.tensor_parallel, stages) for name, stages in chosen)
                return Placement(tuple(rank for ranks in found for rank in ranks), kind)
        return None

    def _free(self, node: NodeState) -> list[GpuState]:
        return [gpu for gpu in self._gpus.get(node.name, ()) if gpu.uuid not in self._taken]

    def _problems(self, want: Want) -> list[str]:
        problems = [f"{node.name}: {self._problem(want, node)}" for node in self._nodes[:MAX_REASONS]]
        more = len(self._nodes) - MAX_REASONS
        return [*problems, *([f"nor has any of {more} more nodes room"] if more > 0 else [])] or ["there is no node"]

    def _problem(self, want: Want, node: NodeState) -> str:
        here = self._gpus.get(node.name, [])
        fitting = [gpu for gpu in here if _kind_fits(want, gpu)]
        if unfit := _unfit(want, node):
            return unfit
        if not here:
            return "has no GPU"
        if not fitting:
            return f"has only GPUs of kind {', '.join(sorted({gpu.kind for gpu in here}))}"
        most = _most(want, [gpu for gpu in fitting if gpu.uuid not in self._taken])
        if want.stages == 1:
            return f"has {most} of {len(fitting)} fitting GPUs free, {want.tensor_parallel - most} too few"
        room = most // want.tensor_parallel
        return f"has {most} of {len(fitting)} fitting GPUs free: room for {room} of {want.stages} stages"


def place(want: Want, nodes: Sequence[NodeState], gpus: Sequence[GpuState]) -> Found:
    """The best place for one engine, or None with what is missing on each node."""
    return Room(nodes, gpus).place(want)


def fits(pool: PoolState, gpu_kind: str, node: NodeState | None) -> bool:
    """Whether an engine on a GPU of this kind on `node` is where the pool's engines may be."""
    if pool.gpu_kinds and gpu_kind not in pool.gpu_kinds:
        return False
    return not pool.node_labels or (node is not None and not _lacking(pool.node_labels, node))


def _ranks(node: str, group: list[GpuState], size: int, stages: int) -> Iterator[Rank]:
    """`stages` parts of `size` GPUs of `group`, which has as many (sorted by index)."""
    left = group
    for _ in range(stages):
        run = _best_run(left, size)
        left = [gpu for gpu in left if gpu not in run]
        yield Rank(node, tuple(gpu.uuid for gpu in run))


class _Closeness:
    """How far a node is from those that have the model's engines: the lower the closer."""

    def __init__(self, peers: Mapping[str, int], nodes: Iterable[NodeState]) -> None:
        self._peers = peers
        self._near: dict[tuple[str, str], int] = {}
        for node in nodes if peers else ():
            for label in CLOSE_LABELS:
                if node.name in peers and label in node.labels:
                    key = (label, node.labels[label])
                    self._near[key] = self._near.get(key, 0) + peers[node.name]

    def of(self, node: NodeState) -> tuple[int, ...]:
        near = (self._near.get((label, node.labels.get(label, "")), 0) for label in CLOSE_LABELS)
        return (-self._peers.get(node.name, 0), *(-each for each in near))


def _summary(want: Want) -> str:
    kinds = f" of kind {' or '.join(want.gpu_kinds)}" if want.gpu_kinds else ""
    labels = f" on a node labelled {_pairs(want.node_labels)}" if want.node_labels else " on one node"
    noun = "GPU" if want.tensor_parallel == 1 else "GPUs of one kind"
    if want.stages > 1:
        return f"needs {want.stages} x {want.tensor_parallel} free GPUs of one kind{kinds}, each stage{labels}"
    return f"needs {want.tensor_parallel} free {noun}{kinds}{labels}"


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _unfit(want: Want, node: NodeState) -> str:
    if node.lost or node.seen_at is None:
        return "its agent is not heard" if node.lost else "its agent never reported"
    if node.cordoned:
        return "is cordoned"
    missing = _lacking(want.node_labels, node)
    return f"lacks the label {_pairs(missing)}" if missing else ""


def _lacking(labels: Mapping[str, str], node: NodeState) -> dict[str, str]:
    return {key: value for key, value in labels.items() if node.labels.get(key) != value}


def _kind_fits(want: Want, gpu: GpuState) -> bool:
    return not want.gpu_kinds or gpu.kind in want.gpu_kinds


def _most(want: Want, free: Sequence[GpuState]) -> int:
    """Of one kind."""
    return max(Counter(gpu.kind for gpu in free if _kind_fits(want, gpu)).values(), default=0)


def _by_kind(want: Want, free: Sequence[GpuState]) -> dict[str, list[GpuState]]:
    """Fitting ones, in order of index."""
    groups: dict[str, list[GpuState]] = {}
    for gpu in sorted(free, key=lambda each: each.index):
        if _kind_fits(want, gpu):
            groups.setdefault(gpu.kind, []).append(gpu)
    return groups


def _kinds(want: Want, found: Collection[str]) -> tuple[str, ...]:
    """In the order in which they are wanted."""
    return want.gpu_kinds or tuple(sorted(found))


def _best_run(group: list[GpuState], size: int) -> list[GpuState]:
    """`size` GPUs out of `group` (sorted by index): an aligned run, else the run that spans least."""
    runs = [group[start : start + size] for start in range(len(group) - size + 1)]
    return min(runs, key=lambda run: (run[-1].index - run[0].index, run[0].index % size, run[0].index))

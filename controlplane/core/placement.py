"""Which GPUs an engine gets. Pure: candidates in, the choice and the reasons against the rest out.

An engine takes as many GPUs of one kind as its tensor-parallel degree, on one node. Filters drop nodes and say why; among
those left, the nodes closest to the model's other engines come first (short KV paths: the node itself, then an equal label
`fabric`, then an equal label `zone`), then the fullest that fits (large gaps stay whole). On a node an aligned, contiguous
run of indices is preferred (neighbours share the fast links).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.world import GpuState, NodeState, PoolState

CLOSE_LABELS = ("fabric", "zone")
"""Nodes that share the value of one are closer than others, by the first more than by the second."""
MAX_REASONS = 50
"""A refusal tells this many nodes apart."""


@dataclass(frozen=True)
class Want:
    """One engine's demand. Empty `gpu_kinds` or `node_labels` accept any. `peers`: the model's engines per node."""

    tensor_parallel: int
    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    peers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    node: str
    gpus: tuple[str, ...]
    """uuids in order of index."""
    kind: str


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
        shape = (pool.tensor_parallel, pool.gpu_kinds, tuple(sorted(pool.node_labels.items())))
        if shape in self._full:
            return None, self._full[shape]
        peers = self._peers.get(pool.model, Counter())
        placement, reasons = self.place(Want(pool.tensor_parallel, pool.gpu_kinds, pool.node_labels, peers))
        if placement is None:
            self._full[shape] = reasons
        return placement, reasons

    def take(self, model: str, placement: Placement) -> None:
        """These GPUs are promised to an engine of `model`."""
        self.placed += 1
        self._taken.update(placement.gpus)
        self._peers.setdefault(model, Counter())[placement.node] += 1

    def place(self, want: Want) -> Found:
        """The best place, or None with what is missing on each node."""
        closeness = _Closeness(want.peers, self._nodes)
        best: tuple[tuple[object, ...], NodeState, list[GpuState]] | None = None
        for node in self._nodes:
            free = [gpu for gpu in self._gpus.get(node.name, ()) if gpu.uuid not in self._taken]
            if len(free) < want.tensor_parallel or _unfit(want, node) or _most(want, free) < want.tensor_parallel:
                continue
            rank = (*closeness.of(node), len(free), node.name)
            if best is None or rank < best[0]:
                best = (rank, node, free)
        if best is None:
            return None, (_summary(want), *self._problems(want))
        kind, chosen = _choose(want, best[2])
        return Placement(best[1].name, tuple(gpu.uuid for gpu in chosen), kind), ()

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
        return f"has {most} of {len(fitting)} fitting GPUs free, {want.tensor_parallel - most} too few"


def place(want: Want, nodes: Sequence[NodeState], gpus: Sequence[GpuState]) -> Found:
    """The best place for one engine, or None with what is missing on each node."""
    return Room(nodes, gpus).place(want)


def fits(pool: PoolState, gpu_kind: str, node: NodeState | None) -> bool:
    """Whether an engine on a GPU of this kind on `node` is where the pool's engines may be."""
    if pool.gpu_kinds and gpu_kind not in pool.gpu_kinds:
        return False
    return not pool.node_labels or (node is not None and not _lacking(pool.node_labels, node))


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


def _choose(want: Want, free: Sequence[GpuState]) -> tuple[str, list[GpuState]]:
    """The kind wanted first that has enough free GPUs, and its best run of them."""
    groups: dict[str, list[GpuState]] = {}
    for gpu in sorted(free, key=lambda each: each.index):
        if _kind_fits(want, gpu):
            groups.setdefault(gpu.kind, []).append(gpu)
    order = want.gpu_kinds or tuple(sorted(groups))
    kind = next(each for each in order if len(groups.get(each, ())) >= want.tensor_parallel)
    return kind, _best_run(groups[kind], want.tensor_parallel)


def _best_run(group: list[GpuState], size: int) -> list[GpuState]:
    """`size` GPUs out of `group` (sorted by index): an aligned run, else the run that spans least."""
    runs = [group[start : start + size] for start in range(len(group) - size + 1)]
    return min(runs, key=lambda run: (run[-1].index - run[0].index, run[0].index % size, run[0].index))

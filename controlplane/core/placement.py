"""Which GPUs an engine gets. Pure: candidates in, the choice and the reasons against the rest out.

An engine takes as many GPUs of one kind as its tensor-parallel degree, on one node. Filters drop nodes and say why; among
those left, nodes that already run the model's engines come first (short KV paths), then the fullest that fits (large gaps
stay whole). On a node an aligned, contiguous run of indices is preferred (neighbours share the fast links).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.world import GpuState, NodeState


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


def place(want: Want, nodes: Sequence[NodeState], gpus: Sequence[GpuState]) -> tuple[Placement | None, tuple[str, ...]]:
    """The best place for one engine and why other nodes were passed over, or None with what is missing on each."""
    kept, reasons = candidates(want, nodes, gpus)
    if not kept:
        return None, (_summary(want), *(reasons or ("there is no node",)))
    return kept[0], reasons


def candidates(want: Want, nodes: Sequence[NodeState], gpus: Sequence[GpuState]) -> tuple[list[Placement], tuple[str, ...]]:
    """(kept, reasons): every node's best placement, best first, and why each other node cannot take the engine."""
    found: list[tuple[tuple[int, int, str], Placement]] = []
    reasons: list[str] = []
    for node in sorted(nodes, key=lambda each: each.name):
        free = [gpu for gpu in gpus if gpu.node == node.name and not gpu.engine]
        problem = _unfit(want, node) or _short(want, node, free, [gpu for gpu in gpus if gpu.node == node.name])
        if problem:
            reasons.append(f"{node.name}: {problem}")
            continue
        kind, chosen = _choose(want, free)
        placement = Placement(node.name, tuple(gpu.uuid for gpu in chosen), kind)
        found.append(((-want.peers.get(node.name, 0), len(free), node.name), placement))
    return [placement for _, placement in sorted(found, key=lambda each: each[0])], tuple(reasons)


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
    missing = {key: value for key, value in want.node_labels.items() if node.labels.get(key) != value}
    return f"lacks the label {_pairs(missing)}" if missing else ""


def _short(want: Want, node: NodeState, free: Sequence[GpuState], all_of_node: Sequence[GpuState]) -> str:
    if not all_of_node:
        return "has no GPU"
    fitting = [gpu for gpu in all_of_node if _kind_fits(want, gpu)]
    if not fitting:
        kinds = ", ".join(sorted({gpu.kind for gpu in all_of_node}))
        return f"has only GPUs of kind {kinds}"
    most = max((len(group) for group in _by_kind(want, free).values()), default=0)
    if most < want.tensor_parallel:
        return f"has {most} of {len(fitting)} fitting GPUs free, {want.tensor_parallel - most} too few"
    return ""


def _kind_fits(want: Want, gpu: GpuState) -> bool:
    return not want.gpu_kinds or gpu.kind in want.gpu_kinds


def _by_kind(want: Want, free: Sequence[GpuState]) -> dict[str, list[GpuState]]:
    groups: dict[str, list[GpuState]] = {}
    for gpu in sorted(free, key=lambda each: each.index):
        if _kind_fits(want, gpu):
            groups.setdefault(gpu.kind, []).append(gpu)
    return groups


def _choose(want: Want, free: Sequence[GpuState]) -> tuple[str, list[GpuState]]:
    """The kind wanted first that has enough free GPUs, and its best run of them."""
    groups = _by_kind(want, free)
    order = want.gpu_kinds or tuple(sorted(groups))
    kind = next(each for each in order if len(groups.get(each, ())) >= want.tensor_parallel)
    return kind, _best_run(groups[kind], want.tensor_parallel)


def _best_run(group: list[GpuState], size: int) -> list[GpuState]:
    """`size` GPUs out of `group` (sorted by index): an aligned run, else the run that spans least."""
    runs = [group[start : start + size] for start in range(len(group) - size + 1)]
    return min(runs, key=lambda run: (run[-1].index - run[0].index, run[0].index % size, run[0].index))

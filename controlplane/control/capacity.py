"""Whether engines that are asked for would find room, judged before anything is promised. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from controlplane.control.facts import Facts
from controlplane.control.gather import pool_state, read_engines, read_gpus, read_nodes
from controlplane.core.placement import Room
from controlplane.core.world import GpuState
from controlplane.fleet import models


def why_not(demands: Iterable[tuple[models.Pool, int]], freed: Collection[str] = ()) -> tuple[str, ...]:
    """Empty if each pool's further engines would fit, else what fits and what is missing. `freed`: ids of engines that give
    their GPUs back first.

    While a node has never reported nobody knows what fits: then nothing is refused, and the loop says what it waits for.
    """
    nodes = read_nodes(Facts())
    if any(node.seen_at is None and not node.lost for node in nodes):
        return ()
    gpus = [replace(gpu, engine="") if gpu.engine in freed else gpu for gpu in read_gpus()]
    places = ((engine.model, rank.node) for engine in read_engines() if engine.wanted for rank in engine.ranks)
    room = Room(nodes, gpus, places)
    for pool, count in demands:
        state = pool_state(pool)
        for placed in range(count):
            placement, reasons = room.find(state)
            if placement is None:
                fits = f"pool {state.name}: {placed} of {count} more engines would fit"
                return (f"{fits}; the next one {reasons[0]}", *reasons[1:], *_soon_free(pool, gpus))
            room.take(state.model, placement)
    return ()


def _soon_free(pool: models.Pool, gpus: Iterable[GpuState]) -> tuple[str, ...]:
    """What engines on their way out are about to give back."""
    leaving = set(models.Engine.objects.filter(wanted=False).values_list("id", flat=True))
    soon = sum(gpu.engine in leaving and (not pool.gpu_kinds or gpu.kind in pool.gpu_kinds) for gpu in gpus)
    return (f"{soon} fitting GPUs become free when draining ends: ask again then",) if soon else ()

"""Turns what happens to the prefix cache into vLLM's KV events: one msgpack batch per step, as vLLM 0.32 encodes it.

A batch is [timestamp, [event, …], data-parallel rank]; events are maps with `type` (vllm/distributed/kv_events.py). As in
vLLM only full blocks are told, hashes are their low 64 bits, one BlockRemoved names one block, and what happens between
steps (a cleared cache) is told with the next step. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from controlplane.core.batching import Change, Cleared, Removed, Stored
from workers.engines.simulated.generation import Generation

MEDIUM = "GPU"
GROUP = 0
"""vLLM numbers its groups of layers with equal KV caches; a simulated engine has one."""
RANK = 0


class EventLog:
    """Collects a step's events. `publish` gets each encoded batch; `wall` is the clock of its timestamp (Unix seconds)."""

    def __init__(self, block_size: int, kind: str, publish: Callable[[bytes], None], wall: Callable[[], float]) -> None:
        self._block_size, self._kind, self._publish, self._wall = block_size, kind, publish, wall
        self._events: list[Mapping[str, Any]] = []

    def note(self, changes: Iterable[Change], generations: Mapping[int, Generation]) -> None:
        """`generations` by request id: whose tokens the stored blocks hold."""
        for change in changes:
            match change:
                case Stored(request, first, last):
                    self._events.append(self._stored(generations[request.id], first, last))
                case Removed(key):
                    self._events.append(
                        {"type": "BlockRemoved", "block_hashes": [key], "medium": MEDIUM, "group_idx": GROUP}
                    )
                case Cleared():
                    self._events.append({"type": "AllBlocksCleared"})

    def flush(self) -> None:
        """The step is through: publish what happened in it, if anything did."""
        if self._events:
            self._publish(msgpack.packb([self._wall(), self._events, RANK]))
            self._events = []

    def _stored(self, generation: Generation, first: int, last: int) -> Mapping[str, Any]:
        size, keys = self._block_size, generation.request.keys
        extra: list[tuple[str, ...] | None] = [None] * (last - first)
        if first == 0 and generation.salt:
            extra[0] = (generation.salt,)
        return {
            "type": "BlockStored",
            "block_hashes": keys[first:last],
            "parent_block_hash": keys[first - 1] if first else None,
            "token_ids": generation.tokens[first * size : last * size].tolist(),
            "block_size": size,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
            "extra_keys": extra,
            "group_idx": GROUP,
            "kv_cache_spec_kind": self._kind,
        }

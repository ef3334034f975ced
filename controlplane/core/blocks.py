"""Paged KV blocks of one engine: reference counts, and a prefix cache over full blocks with least-recently-used eviction.

Blocks are integers 0..num_blocks-1. A key is the integer hash of a full block's tokens chained to its predecessor's key, so
that equal keys mean equal prefixes; hashing happens outside. Two blocks may hold the same: as in vLLM both are known under
their key and the older one is hit. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """A block is free, cached (free, but its content may be hit until it is evicted) or held by one or more owners."""

    def __init__(self, num_blocks: int, prefix_caching: bool = True, evicted: Callable[[int], None] | None = None) -> None:
        """`evicted` is called with the key of each block that is forgotten because it is given out again."""
        if num_blocks < 1:
            raise ValueError(f"an engine needs at least one KV block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.prefix_caching = prefix_caching
        self._untouched = 0  # blocks from here on were never given out: no list of all blocks is kept
        self._free: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached and unowned, oldest first
        self._block_of: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # further blocks under a key of _block_of, oldest first
        self._evicted = evicted
        self._key_of: dict[int, int] = {}
        self._owners = array("i", bytes(4 * num_blocks))

    @property
    def free(self) -> int:
        """Blocks that can be given out, cached ones included."""
        return self.num_blocks - self._untouched + len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        return self.num_blocks - self.free

    def take(self, count: int) -> list[int] | None:
        """`count` blocks for one owner, evicting the least recently used cached ones; None if there are too few."""
        if count > self.free:
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._free:
            block = self._free.pop()
        elif self._untouched < self.num_blocks:
            block = self._untouched
            self._untouched += 1
        else:
            block, _ = self._idle.popitem(last=False)
            self._evict(block)
        self._owners[block] = 1
        return block

    def _evict(self, block: int) -> None:
        key = self._key_of.pop(block)
        twins = self._twins.get(key)
        if twins is None:
            del self._block_of[key]
        else:
            if self._block_of[key] == block:
                self._block_of[key] = twins.pop(0)
            else:
                twins.remove(block)
            if not twins:
                del self._twins[key]
        if self._evicted:
            self._evicted(key)

    def hit(self, keys: Sequence[int], limit: int) -> list[int]:
        """The cached blocks of the longest known prefix of `keys`, at most `limit`; they are not owned yet (see `share`)."""
        found: list[int] = []
        if self.prefix_caching:
            for key in keys[:limit]:
                block = self._block_of.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` count as free now and would not after `share`."""
        return sum(1 for block in blocks if not self._owners[block])

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of these cached blocks."""
        for block in blocks:
            if not self._owners[block]:
                del self._idle[block]
            self._owners[block] += 1

    def remember(self, block: int, key: int) -> None:
        """The full block `block` (owned) can be hit under `key` from now on."""
        if self.prefix_caching and block not in self._key_of:
            self._key_of[block] = key
            if self._block_of.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)

    def forget(self) -> None:
        """Nothing can be hit any more; blocks stay with their owners."""
        self._free[:0] = reversed(self._idle)
        self._idle.clear()
        self._block_of.clear()
        self._twins.clear()
        self._key_of.clear()

    def give_back(self, blocks: Sequence[int]) -> None:
        """One owner less for each block. The end of a prefix is evicted before its start."""
        for block in reversed(blocks):
            owners = self._owners[block] - 1
            if owners < 0:
                raise AssertionError(f"block {block} was given back more often than taken")
            self._owners[block] = owners
            if owners == 0:
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self._free.append(block)

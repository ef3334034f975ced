"""Paged KV blocks of one engine: reference counts, and a prefix cache over full blocks with least-recently-used eviction.

Blocks are integers 0..num_blocks-1. A key is the integer hash of a full block's tokens chained to its predecessor's key, so
that equal keys mean equal prefixes; hashing happens outside. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """A block is free, cached (free, but its content may be hit until it is evicted) or held by one or more owners."""

    def __init__(self, num_blocks: int, prefix_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"an engine needs at least one KV block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.prefix_caching = prefix_caching
        self._untouched = 0  # blocks from here on were never given out: no list of all blocks is kept
        self._free: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached and unowned, oldest first
        self._block_of: dict[int, int] = {}
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
            del self._block_of[self._key_of.pop(block)]
        self._owners[block] = 1
        return block

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
        """The full block `block` (owned) can be hit under `key` from now on. A known key stays where it is."""
        if self.prefix_caching and key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

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

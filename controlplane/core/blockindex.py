"""Which engine holds which blocks of KV, as the engines themselves tell: precise, where core.kvindex guesses. Bounded.

A block has two names: the engine's own hash, by which its events call it, and a key, the same for all engines: a hash of its
tokens chained to the key before, made outside. Equal keys mean equal prefixes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.core.kvindex import held_depths

MAX_BLOCKS = 1_000_000
"""Of all engines together; about 250 bytes each."""

Hash = int | bytes
"""An engine's name of a block."""


class Cache:
    """One engine's. Made by `BlockIndex.add`."""

    __slots__ = ("_bit", "_copies", "_index", "_keys", "block_size", "name", "whole")

    def __init__(self, index: BlockIndex, name: str, bit: int) -> None:
        self.name = name
        self.block_size = 0
        """Tokens; 0: not told yet."""
        self.whole = False
        """Everything that the engine holds is known, not only a part of it."""
        self._index = index
        self._bit = bit
        self._keys: dict[Hash, int] = {}
        """The engine's hash -> key."""
        self._copies: dict[Hash, int] = {}
        """The engine's hash -> how many blocks more than one have it."""

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, hash: Hash) -> int | None:
        """The key of a block that is held."""
        return self._keys.get(hash)

    def store(self, hash: Hash, key: int) -> None:
        """The engine holds another block. One that there is no room for is left out, and what is known is a part."""
        if hash in self._keys:
            self._copies[hash] = self._copies.get(hash, 0) + 1
        elif self._index.is_full_for(self):
            self.whole = False
        else:
            self._keys[hash] = key
            self._index.total += 1
            holders = self._index.holders
            holders[key] = holders.get(key, 0) | self._bit

    def remove(self, hash: Hash) -> None:
        """One block with that hash is gone."""
        more = self._copies.pop(hash, 0)
        if more:
            if more > 1:
                self._copies[hash] = more - 1
            return
        key = self._keys.pop(hash, None)
        if key is not None:
            self._index.total -= 1
            self._let_go(key)

    def clear(self) -> None:
        """The engine holds nothing, or nothing that is known."""
        for key in self._keys.values():
            self._let_go(key)
        self._index.total -= len(self._keys)
        self._keys.clear()
        self._copies.clear()

    def _let_go(self, key: int) -> None:
        holders = self._index.holders
        left = holders.get(key, 0) & ~self._bit
        if left:
            holders[key] = left
        else:
            holders.pop(key, None)


class BlockIndex:
    """All engines that one indexer hears of. A look-up costs time in proportion to the prompt, whatever their number."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.total = 0
        """Blocks of all engines together."""
        self.holders: dict[int, int] = {}
        """Key -> the bits of the engines that hold it; never 0."""
        self.caches: dict[str, Cache] = {}
        self._by_bit: dict[int, Cache] = {}

    def add(self, name: str) -> Cache:
        """A new engine's cache, empty and not known to be. Call `drop` before a name is used again."""
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        cache = self._by_bit[bit] = self.caches[name] = Cache(self, name, bit)
        return cache

    def drop(self, name: str) -> None:
        cache = self.caches.pop(name)
        cache.clear()
        del self._by_bit[cache._bit]

    def is_full_for(self, cache: Cache) -> bool:
        """Whether there is no room for one more. Each engine's equal share of the whole is always free for it, whatever
        others have taken, so there may be up to twice `max_blocks`."""
        return self.total >= self.max_blocks and len(cache) * len(self.caches) >= self.max_blocks

    def match(self, keys: Sequence[int]) -> Mapping[str, int]:
        """How many of a prompt's first blocks each engine holds; engines that hold none are left out."""
        return {self._by_bit[bit].name: depth for bit, depth in held_depths(keys, self.holders)}

"""Which engine probably holds the KV cache of which prefix, from what a router itself has sent there. Approximate, bounded.

A prompt is a chain of blocks; a block's key is an integer hash of its content chained to its predecessor's key, so that
equal keys mean equal prefixes. Hashing happens outside. Each engine forgets as an engine does: least recently used first,
the end of a prefix before its start, no more blocks than its cache has. A `Holder` belongs to one incarnation of an engine:
close it when the engine is replaced. Pure: times come in as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

MAX_BLOCKS = 100_000
"""Entries of all engines together; about 200 bytes each."""

SPARE = 64
"""A full holder lets 1/64 of its blocks go at once: the oldest entry of a dict is cheap to find only now and then."""

LEAST_TRUST = 0.05
"""Enough to notice that an engine's cache works again."""


class Prefix:
    """A prompt as its chain of whole blocks."""

    __slots__ = ("ends", "keys", "size")

    def __init__(self, keys: Sequence[int] = (), ends: Sequence[int] = (), size: int = 1) -> None:
        self.keys = keys
        self.ends = ends
        """Where each block ends, in any unit; may go on beyond `keys`."""
        self.size = size
        """Of the whole prompt, in the unit of `ends`; at least 1."""

    def tokens(self, blocks: int, prompt_tokens: int) -> int:
        """How many of a prompt's tokens its first `blocks` blocks are."""
        return prompt_tokens * self.ends[blocks - 1] // self.size if blocks else 0


NO_PREFIX = Prefix()


class Holder:
    """What one incarnation of an engine holds: nothing before it has entered the index, and after it was closed."""

    __slots__ = ("_index", "bit", "capacity", "held", "name", "trust")

    def __init__(self, index: KvIndex, name: str, capacity: int = 0) -> None:
        self.name = name
        self.capacity = capacity
        """Blocks its cache has; 0: not known. May be set at any time."""
        self.held: dict[int, float] = {}
        """Key -> when it was last used; the least recently used first."""
        self.trust = 1.0
        """Which share of what is expected to be there is found there: less if the engine's cache is off, smaller or shared
        with others."""
        self.bit = 0
        """Its place in the index, which sets it; 0: not there."""
        self._index = index

    def found(self, expected_tokens: int, tokens: int) -> None:
        """The engine had `tokens` of a prompt in its cache, where `expected_tokens` were expected, `trust` included."""
        if expected_tokens > 0:
            share = min(1.0, self.trust * tokens / expected_tokens)
            self.trust = max(LEAST_TRUST, self.trust + 0.1 * (share - self.trust))

    def insert(self, keys: Sequence[int], now: float) -> None:
        """The engine computes or fetches this prefix: its blocks are the most recently used. Nothing outside the index."""
        if not self.bit:
            return
        limit = self._index.limit(self)
        held, holders, bit = self.held, self._index.holders, self.bit
        for key in reversed(keys[:limit]):
            if held.pop(key, None) is None:
                holders[key] = holders.get(key, 0) | bit
            held[key] = now
        if len(held) > limit:
            self._drop(len(held) - limit + limit // SPARE)

    def recent(self, keys: Sequence[int], depth: int, since: float) -> int:
        """How many of the first `depth` blocks of a prompt, all of which it holds, were used since then."""
        held = self.held
        while depth and held[keys[depth - 1]] < since:
            depth -= 1
        return depth

    def trim(self) -> None:
        """Forgets what is more than it may hold."""
        self._drop(max(0, len(self.held) - self._index.limit(self)))

    def expire(self, before: float) -> None:
        """Forgets what was last used before that time."""
        count = 0
        for at in self.held.values():
            if at >= before:
                break
            count += 1
        self._drop(count)

    def forget(self) -> None:
        """Forgets everything: the engine lost its cache."""
        self._drop(len(self.held))

    def close(self) -> None:
        """The engine is gone or replaced. Its place can be given to another."""
        self.forget()
        self._index.leave(self)

    def _drop(self, count: int) -> None:
        held, holders, bit = self.held, self._index.holders, self.bit
        for key in list(islice(held, count)):
            del held[key]
            left = holders[key] & ~bit
            if left:
                holders[key] = left
            else:
                del holders[key]


class KvIndex:
    """All engines of one router. Every operation costs time in proportion to the chain, whatever the number of engines."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.holders: dict[int, int] = {}
        """Key -> the bits of the engines that hold it; never 0."""
        self._by_bit: dict[int, Holder] = {}

    def add(self, name: str, capacity: int = 0) -> Holder:
        """A new engine."""
        holder = Holder(self, name, capacity)
        self.enter(holder)
        return holder

    def enter(self, holder: Holder) -> None:
        """From now on it is found. Nothing if it is here already."""
        if holder.bit:
            return
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        self._by_bit[bit] = holder
        holder.bit = bit
        for each in self._by_bit.values():
            each.trim()  # each one's share of the whole is smaller now

    def leave(self, holder: Holder) -> None:
        self._by_bit.pop(holder.bit, None)
        holder.bit = 0

    def limit(self, holder: Holder) -> int:
        """The most blocks it may hold: its capacity, and no more than its share of the whole."""
        share = self.max_blocks // max(1, len(self._by_bit))
        return min(holder.capacity, share) if holder.capacity else share

    def match(self, keys: Sequence[int]) -> dict[Holder, int]:
        """How many of the first blocks each engine holds; engines that hold none are left out."""
        return {self._by_bit[bit]: depth for bit, depth in held_depths(keys, self.holders)}

    def expire(self, before: float) -> None:
        """Forgets all that was last used before that time."""
        for holder in self._by_bit.values():
            holder.expire(before)

    def __len__(self) -> int:
        """Entries of all engines together."""
        return sum(len(holder.held) for holder in self._by_bit.values())


def held_depths(keys: Iterable[int], holders: Mapping[int, int]) -> list[tuple[int, int]]:
    """(bit, how many of the first `keys` it holds) for each bit that holds the first one. `holders`: by key, the bits that
    hold it. One walk for all; it ends where nobody holds on."""
    found: list[tuple[int, int]] = []
    alive, depth = -1, 0
    for key in keys:
        holding = alive & holders.get(key, 0)
        if holding != alive:
            if depth:
                _note(found, alive & ~holding, depth)
            alive = holding
            if not alive:
                return found
        depth += 1
    if depth:
        _note(found, alive, depth)
    return found


def _note(found: list[tuple[int, int]], bits: int, depth: int) -> None:
    while bits:
        bit = bits & -bits
        found.append((bit, depth))
        bits ^= bit

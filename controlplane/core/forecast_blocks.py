"""KV blocks of one merged engine by the rules of `core.blocks.BlockPool`; blocks without a key are only counted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class Known:
    """A block that can be hit under its key."""

    __slots__ = ("key", "owners")

    def __init__(self, key: int) -> None:
        self.key = key
        self.owners = 1


class BlockCounts:
    """A block is plain and free, private to one owner (counted by the owner), or known: held by owners, or idle and evicted
    when plain ones are used up, least recently used first. Several may be known under one key; the oldest is hit."""

    def __init__(self, num_blocks: int, prefix_caching: bool) -> None:
        self.plain = num_blocks
        """Free blocks that nobody would miss."""
        self._caching = prefix_caching
        self._idle: OrderedDict[Known, None] = OrderedDict()
        self._block_of: dict[int, Known] = {}
        self._twins: dict[int, list[Known]] = {}
        """Further blocks under a key of `_block_of`, oldest first."""

    @property
    def free(self) -> int:
        """Blocks that can be given out, idle ones included."""
        return self.plain + len(self._idle)

    def take(self, count: int) -> None:
        """`count` (at most `free`) private blocks more."""
        self.plain -= count
        while self.plain < 0:
            block, _ = self._idle.popitem(last=False)
            self._evict(block)
            self.plain += 1

    def _evict(self, block: Known) -> None:
        twins = self._twins.get(block.key)
        if twins is None:
            del self._block_of[block.key]
            return
        if self._block_of[block.key] is block:
            self._block_of[block.key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[block.key]

    def hit(self, keys: Sequence[int], limit: int) -> list[Known]:
        """The known blocks of the longest known prefix of `keys`, at most `limit`; not owned yet (see `share`)."""
        found: list[Known] = []
        for key in keys[:limit]:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def hits(self, keys: Sequence[int], limit: int) -> int:
        """How many `hit` would find. As a prefix's end goes before its start, the known keys of a chain are its first ones,
        and the last of them is found by halving."""
        return bisect_left(keys, True, hi=min(limit, len(keys)), key=lambda key: key not in self._block_of)

    def idle_among(self, blocks: Sequence[Known]) -> int:
        return sum(not block.owners for block in blocks)

    def share(self, blocks: Sequence[Known]) -> None:
        """One more owner for each of these blocks."""
        for block in blocks:
            if not block.owners:
                del self._idle[block]
            block.owners += 1

    def remember(self, keys: Sequence[int]) -> list[Known]:
        """As many private blocks of one owner become known under these keys (none without a prefix cache)."""
        if not self._caching:
            return []
        blocks = [Known(key) for key in keys]
        for block in blocks:
            if self._block_of.setdefault(block.key, block) is not block:
                self._twins.setdefault(block.key, []).append(block)
        return blocks

    def give_back(self, private: int, known: Sequence[Known]) -> None:
        """An owner leaves `private` counted blocks and its known ones. The end of a prefix is evicted before its start."""
        self.plain += private
        for block in reversed(known):
            block.owners -= 1
            if not block.owners:
                self._idle[block] = None

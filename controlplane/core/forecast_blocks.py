"""KV blocks of one merged engine by the rules of `core.blocks.BlockPool`; blocks without a key are only counted. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCounts:
    """A block is plain and free, private to one owner (counted by the owner), or keyed: held by owners, or idle and evicted
    when plain ones are used up, least recently used first."""

    def __init__(self, num_blocks: int, prefix_caching: bool) -> None:
        self._plain = num_blocks
        self._caching = prefix_caching
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._owners: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be given out, idle ones included."""
        return self._plain + len(self._idle)

    def take(self, count: int) -> None:
        """`count` (at most `free`) private blocks more."""
        self._plain -= count
        while self._plain < 0:
            self._idle.popitem(last=False)
            self._plain += 1

    def hit(self, keys: Sequence[int], limit: int) -> int:
        """How many leading keys are known, at most `limit`."""
        if not self._caching:
            return 0
        found, owners, idle = 0, self._owners, self._idle
        for key in keys[:limit]:
            if key not in owners and key not in idle:
                break
            found += 1
        return found

    def idle_among(self, keys: Sequence[int]) -> int:
        return sum(key in self._idle for key in keys)

    def share(self, keys: Sequence[int]) -> None:
        """One more owner for each of these known keys."""
        for key in keys:
            if key in self._idle:
                del self._idle[key]
                self._owners[key] = 1
            else:
                self._owners[key] += 1

    def remember(self, key: int) -> bool:
        """A private block gets a key, unless another block has it: whether it did. Its owner then owns the key instead."""
        if not self._caching or key in self._owners or key in self._idle:
            return False
        self._owners[key] = 1
        return True

    def give_back(self, private: int, keys: Sequence[int]) -> None:
        """An owner leaves `private` counted blocks and its keys. The end of a prefix is evicted before its start."""
        self._plain += private
        for key in reversed(keys):
            owners = self._owners[key] - 1
            if owners:
                self._owners[key] = owners
            else:
                del self._owners[key]
                self._idle[key] = None

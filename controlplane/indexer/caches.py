"""Follows what each engine tells of its prefix cache. No I/O; times (monotonic) and batches come in.

An engine numbers its batches from 0. After a gap nothing that was known is believed: a block may have been evicted
meanwhile. What is told afterwards is, so a cache is known in part from then on, until the engine clears it or starts again.
A look-up tells which it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.blockindex import BlockIndex, Cache
from controlplane.indexer import blocks
from controlplane.indexer.events import BadBatch, Cleared, Event, Removed, Stored, read

MAX_ENGINES = 1024
MAX_HELD_BYTES = 64 << 20
"""Batches of one engine that wait for what was missed."""
FORGET_S = 600.0
"""An engine that no router knows is forgotten when it has been silent for this long."""

_UNIT = blocks.ID_BYTES


@dataclass
class Counters:
    batches: int = 0
    refused: int = 0
    gaps: int = 0
    restarts: int = 0


@dataclass(eq=False)
class Following:
    """One engine. `next` is the number of the batch that comes next; 0 before the first."""

    cache: Cache
    heard_at: float
    next: int = 0
    group: int = -1
    """The group of layers that is followed; -1: none yet."""
    began_at: float = 0.0
    """When what is known began to be gathered."""
    incarnation: int = 0
    learnt_at: float = 0.0
    """When a router told of that incarnation."""
    waiting: list[tuple[int, bytes]] | None = None
    """Batches after a gap that is being asked about."""
    waiting_bytes: int = 0
    in_tables: bool = False


class Caches:
    """`on_gap(engine, number)` is called when batches from `number` on were missed: True if they have been asked for, and
    `repeated` will be called."""

    def __init__(self, index: BlockIndex, on_gap: Callable[[str, int], bool] = lambda engine, number: False) -> None:
        self.index = index
        self.counters = Counters()
        self._on_gap = on_gap
        self.followed: dict[str, Following] = {}

    def heard(self, engine: str, number: int, payload: bytes, now: float) -> None:
        """A batch, in the order in which they come."""
        known = self.followed.get(engine)
        if known is None:
            if len(self.followed) >= MAX_ENGINES and not self._make_room():
                return
            known = self.followed[engine] = Following(self.index.add(engine), now, began_at=now)
            known.cache.whole = True
        known.heard_at = now
        self.counters.batches += 1
        if known.waiting is not None and number >= known.next:
            known.waiting.append((number, payload))
            known.waiting_bytes += len(payload)
            if known.waiting_bytes > MAX_HELD_BYTES:
                self.repeated(engine, [], now)
            return
        if number < known.next:
            self.counters.restarts += 1
            known.waiting = None
            self._forget(known, now)
            known.cache.whole = True
            known.next = 0
        if number > known.next:
            self.counters.gaps += 1
            if self._on_gap(engine, known.next):
                known.waiting, known.waiting_bytes = [(number, payload)], len(payload)
                return
            self._forget(known, now)
        self._take(known, number, payload, now)

    def repeated(self, engine: str, batches: Iterable[tuple[int, bytes]], now: float) -> None:
        """What the engine had of the batches that were missed; what came meanwhile follows."""
        known = self.followed.get(engine)
        if known is None or known.waiting is None:
            return
        came, known.waiting = known.waiting, None
        for number, payload in [*batches, *came]:
            if number < known.next:
                continue  # it came both ways
            if number > known.next:
                self._forget(known, now)
            self._take(known, number, payload, now)

    def _make_room(self) -> bool:
        """Forgets the engine that no router knows and that has been silent longest."""
        strangers = [name for name, known in self.followed.items() if not known.in_tables]
        if not strangers:
            return False
        self._drop(min(strangers, key=lambda name: self.followed[name].heard_at))
        return True

    def _drop(self, engine: str) -> None:
        self.index.drop(engine)
        del self.followed[engine]

    def _take(self, known: Following, number: int, payload: bytes, now: float) -> None:
        known.next = number + 1
        try:
            events = read(payload)
        except BadBatch:
            self.counters.refused += 1
            self._forget(known, now)
            return
        for event in events:
            self._apply(known, event)

    def _forget(self, known: Following, now: float) -> None:
        known.cache.clear()
        known.cache.whole = False
        known.began_at = now

    def _apply(self, known: Following, event: Event) -> None:
        cache = known.cache
        match event:
            case Cleared():
                cache.clear()
                cache.whole = True
            case Removed():
                if event.group == known.group:
                    for hash in event.hashes:
                        cache.remove(hash)
            case Stored():
                if known.group < 0:
                    known.group = event.group
                if event.group == known.group:
                    self._store(known, event)

    def _store(self, known: Following, event: Stored) -> None:
        cache, size = known.cache, event.block_size
        if size != cache.block_size:
            cache.clear()
            cache.block_size = size
        extras = list(event.extras) or [None] * len(event.hashes)
        if event.adapter:
            extras = [_without(event.adapter, each) for each in extras]
        if event.parent is None:
            first = extras[0] if extras else None
            salt = first[0] if first and len(first) == 1 and isinstance(first[0], str) else ""
            if salt:
                extras[0] = None
            key: int | None = blocks.root(event.adapter, salt)
        else:
            key = cache.key(event.parent)
        if key is None:
            return  # after a block that is not known: no prompt leads there
        raw, step = memoryview(event.tokens).cast("B"), size * _UNIT
        for place, hash in enumerate(event.hashes):
            extra = extras[place]
            if extra:
                key = blocks.with_extras(key, extra)
            key = blocks.next_key(key, raw[place * step : (place + 1) * step])
            cache.store(hash, key)

    # --- what routers tell ---

    def known_to_routers(self, incarnations: dict[str, int], now: float) -> None:
        """Engines of all tables, id -> incarnation. Called at every change and now and then."""
        for engine, incarnation in incarnations.items():
            known = self.followed.get(engine)
            if known is None or incarnation <= known.incarnation:
                continue
            if known.incarnation and known.began_at < known.learnt_at:
                # Another start, and its numbers did not show it.
                self._forget(known, now)
            known.incarnation, known.learnt_at = incarnation, now
        for engine, known in list(self.followed.items()):
            known.in_tables = engine in incarnations
            if engine not in incarnations and now - known.heard_at > FORGET_S:
                self._drop(engine)

    # --- look-ups ---

    def look_up(
        self, tokens: array[int], adapter: str, engines: dict[str, str], all_tokens: bool = True
    ) -> dict[str, tuple[int, bool]]:
        """Engine -> (tokens of the prompt that its cache holds, whether it holds no more) for `engines`, id -> cache_salt.
        Those that nothing is known of are left out. Without `all_tokens` the prompt goes on after them."""
        chains: dict[tuple[int, str], dict[str, int]] = {}
        found = {}
        most = max(0, len(tokens) - 1)  # engines compute the last token in any case
        for engine, salt in engines.items():
            known = self.followed.get(engine)
            if known is None or not known.cache.block_size or known.waiting is not None:
                continue
            size = known.cache.block_size
            kind = (size, salt)
            held = chains.get(kind)
            if held is None:
                keys = blocks.chain(tokens[: most // size * size], size, blocks.root(adapter, salt))
                held = chains[kind] = dict(self.index.match(keys))
            hit = held.get(engine, 0) * size
            found[engine] = (hit, known.cache.whole and (all_tokens or hit < most // size * size))
        return found


def _without(adapter: str, extra: Sequence[object] | None) -> list[object] | None:
    """A block's extra keys but for the adapter's name, which the chain begins with."""
    return [each for each in extra if each != adapter] or None if extra else None

"""What the processes of one router know of each other: reservations on engines, use of limits, prefixes sent, metrics."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence

import xxhash

from controlplane.core.ratelimit import CELLS, Cells
from controlplane.router import metrics_sum
from controlplane.router.engines import Engine
from controlplane.router.loads import Reserved
from controlplane.router.shared import ENGINES, LOAD_CELLS, TEAMS, At, Segment, Slot, entries

log = logging.getLogger(__name__)

FRESH_S = 0.004
"""What was read so lately is used again: prefills take longer, and reading costs 2 to 6 us."""
SHARE = 20
"""Reading takes at most one part in so many of a process's time."""


class Siblings:
    """As one process sees the others. Its own slot may hold what a process before it left there."""

    def __init__(self, segment: Segment, number: int) -> None:
        self._own = segment.slots[number]
        self._all = segment.slots
        self._others = [_Sibling(slot) for at, slot in enumerate(segment.slots) if at != number]
        self._engines = _Columns(ENGINES, "engines")
        self._bound: dict[int, Engine] = {}
        self._warm = False
        self._read_at = 0.0
        self._cost_s = 0.0
        self._counted_before = metrics_sum.counters(self._own.page() or b"")
        """Of the processes before this one, so that no counter falls."""
        self._teams = _Columns(TEAMS, "teams")
        self._windows: dict[str, Cells] = {}
        self._elsewhere: dict[str, list[memoryview]] = {}
        self._elsewhere_of: tuple[int, ...] = ()
        self._inherited = _windows_by_key(self._own)
        self._own.process_died()  # should its parent not have said so
        self._own.head[At.TEAMS_USED] = 0

    def serving(self) -> None:
        """This process takes connections now."""
        self._own.head[At.LIVE] = os.getpid()

    # --- reservations and prefixes ---

    def bind(self, engines: Iterable[Engine]) -> None:
        """These are the engines on which this process may have something open."""
        wanted = {_digest(f"{e.route.id}\0{e.route.incarnation}\0{e.route.url}"): e for e in engines}
        if wanted == self._bound:
            return
        own, head = self._own, self._own.head
        head[At.ENGINES_CHANGE] += 1
        for key, engine in self._bound.items():
            if wanted.get(key) is not engine:
                engine.load.unshare()
        for key, column in self._engines.assign(wanted).items():
            own.engine_keys[column] = key
            engine, at = wanted[key], column * LOAD_CELLS
            engine.load.share(key, own.loads[at : at + LOAD_CELLS])
        for column in self._engines.free():
            own.engine_keys[column] = 0
        head[At.ENGINES_USED] = self._engines.used
        head[At.ENGINES_CHANGE] += 1
        self._bound = wanted
        for sibling in self._others:
            sibling.forget()
        if not self._warm and wanted:
            self._warm = True
            for slot in self._all:
                self._insert(slot.told(slot.lap())[1])
        self._read_at = 0.0

    def told(self, engine: Engine, hashes: Sequence[int]) -> None:
        """`engine` is being sent a prompt of these blocks."""
        if hashes and engine.load.key:
            self._own.tell(engine.load.key, hashes)

    def refresh(self) -> None:
        """Brings loads and prefixes up to date, unless they were a moment ago."""
        now = time.monotonic()
        if now - self._read_at < max(FRESH_S, SHARE * self._cost_s):
            return
        for sibling in self._others:
            sibling.read(self._bound)
            self._insert(sibling.new_prefixes())
        for key, engine in self._bound.items():
            flights = prompts = outputs = kv = 0
            for sibling in self._others:
                at = sibling.places.get(key)
                if at is not None:
                    cells = sibling.cells
                    flights += cells[at]
                    prompts += cells[at + 1]
                    outputs += cells[at + 2]
                    kv += cells[at + 3]
            engine.load.see_siblings(Reserved(flights, prompts, outputs, kv))
        self._read_at = time.monotonic()
        self._cost_s = self._read_at - now

    def produced(self, engine: Engine) -> int:
        """Output tokens that the others have had from an engine, ever; less after one of them has died."""
        places = ((sibling, sibling.places.get(engine.load.key)) for sibling in self._others)
        return sum(sibling.cells[at + 4] for sibling, at in places if at is not None)

    def _insert(self, pieces: Iterable[list[int]]) -> None:
        now = time.monotonic()
        for words in pieces:
            for key, hashes in entries(words):
                engine = self._bound.get(key)
                if engine is not None:
                    engine.holder.insert(hashes, now)

    # --- limits (admission.Book) ---

    def keep(self, teams: frozenset[str]) -> None:
        own, head = self._own, self._own.head
        names = {_digest(team): team for team in teams}
        head[At.TEAMS_CHANGE] = (head[At.TEAMS_CHANGE] | 1) + 2
        known = self._windows
        self._windows = {team: known.get(team) or [0] * CELLS for team in teams}
        for key, column in self._teams.assign(names).items():
            own.team_keys[column] = key
            cells = own.windows[column * CELLS : (column + 1) * CELLS]
            before = self._inherited.pop(key, None) or [0] * CELLS
            for at, value in enumerate(before):
                cells[at] = value
            self._windows[names[key]] = cells
        for column in self._teams.free():
            own.team_keys[column] = 0
        head[At.TEAMS_USED] = self._teams.used
        head[At.TEAMS_CHANGE] += 1
        self._elsewhere_of = ()

    def own(self, team: str) -> Cells:
        return self._windows[team]

    def elsewhere(self, team: str) -> Sequence[memoryview]:
        changes = tuple(sibling.slot.head[At.TEAMS_CHANGE] for sibling in self._others)
        if changes != self._elsewhere_of:
            self._elsewhere_of, self._elsewhere = changes, {}
        found = self._elsewhere.get(team)
        if found is None:
            key = _digest(team)
            found = self._elsewhere[team] = [cells for each in self._others for cells in each.windows_of(key)]
        return found

    # --- metrics ---

    def publish(self, page: bytes) -> None:
        if self._counted_before.strip():
            page = metrics_sum.total([page], [self._counted_before])
        if not self._own.publish(page):
            log.warning("the metrics page is too large to be summed over processes")

    def total(self, page: bytes) -> bytes:
        """The page of all processes together; `page` is this one's own, now."""
        self.publish(page)
        living: list[bytes] = [self._own.page() or page]
        dead: list[bytes] = []
        for sibling in self._others:
            text = sibling.page()
            (living if sibling.slot.head[At.LIVE] else dead).append(text)
        return metrics_sum.total(living, [metrics_sum.counters(text) for text in dead])


class _Columns:
    """Which column of a slot a key has. A key that stays keeps its own."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._of: dict[int, int] = {}
        self._told = False

    def assign(self, keys: Mapping[int, object]) -> dict[int, int]:
        """Columns of the keys that are new. Keys for which there is no room get none."""
        self._of = {key: column for key, column in self._of.items() if key in keys}
        free = iter(sorted(set(range(self._most)) - set(self._of.values())))
        new = dict(zip((key for key in keys if key not in self._of), free, strict=False))
        self._of.update(new)
        if len(self._of) < len(keys) and not self._told:
            self._told = True
            log.warning("more than %d %s: the rest is not shared between the router's processes", self._most, self._what)
        return new

    @property
    def used(self) -> int:
        return max(self._of.values(), default=-1) + 1

    def free(self) -> set[int]:
        return set(range(self.used)) - set(self._of.values())


class _Sibling:
    """The reader of one other slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.cells: list[int] = []
        self.places: dict[int, int] = {}
        """Key of an engine -> where its cells begin."""
        self._change = -1
        self._used = 0
        self._ring_at = slot.lap()
        self._page = b""

    def forget(self) -> None:
        """Our own engines have changed."""
        self._change = -1

    def read(self, wanted: Mapping[int, Engine]) -> None:
        """The newest cells; the old ones if they are being moved right now."""
        head = self.slot.head
        change = head[At.ENGINES_CHANGE]
        if change & 1:
            return
        places, used = self.places, self._used
        if change != self._change:
            used = min(head[At.ENGINES_USED], ENGINES)
            keys = self.slot.engine_keys[:used].tolist()
            places = {key: at * LOAD_CELLS for at, key in enumerate(keys) if key in wanted}
        cells = self.slot.loads[: used * LOAD_CELLS].tolist()
        if head[At.ENGINES_CHANGE] == change:
            self._change, self._used, self.places, self.cells = change, used, places, cells

    def new_prefixes(self) -> list[list[int]]:
        self._ring_at, pieces = self.slot.told(self._ring_at)
        return pieces

    def windows_of(self, key: int) -> list[memoryview]:
        keys = self.slot.team_keys[: min(self.slot.head[At.TEAMS_USED], TEAMS)].tolist()
        return [self.slot.windows[at * CELLS : (at + 1) * CELLS] for at, each in enumerate(keys) if each == key]

    def page(self) -> bytes:
        """The last whole one."""
        self._page = self.slot.page() or self._page
        return self._page


def _windows_by_key(slot: Slot) -> dict[int, list[int]]:
    keys = slot.team_keys[: min(slot.head[At.TEAMS_USED], TEAMS)].tolist()
    return {key: slot.windows[at * CELLS : (at + 1) * CELLS].tolist() for at, key in enumerate(keys) if key}


def _digest(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())

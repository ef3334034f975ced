"""Which salts engines must be asked under (core.eras): known to this router, kept in a file, told to others.

The file serves routers on one machine, and a router that starts again; Valkey (link.py) those on many.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from controlplane.common.files import write_private
from controlplane.core import signing
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import CacheEra, RoutingTable

log = logging.getLogger(__name__)

MAX_KNOWN = 10_000
MAX_SALT = 128
"""vLLM refuses a longer cache_salt."""

Mark = tuple[int, int]
"""Time of change and size."""


def salted(era_salt: str, own: Any) -> Any:
    """The cache_salt of a leg: the era's with the request's own inside. One that engines refuse is left to be refused."""
    if own is None:
        return era_salt
    if not isinstance(own, str) or not 0 < len(own) <= MAX_SALT:
        return own
    both = f"{era_salt}.{own}"
    return (
        both if len(both) <= MAX_SALT else f"{era_salt}.{hashlib.sha256(own.encode('utf-8', 'surrogatepass')).hexdigest()}"
    )


class EraBook:
    """The newest era of each start of an engine that has one, those included that are in no table (yet)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], CacheEra] = {}
        self.on_new: list[Callable[[CacheEra], None]] = []
        """Called with what this router has found out itself, to tell it to others."""

    def get(self, engine: str, incarnation: int) -> CacheEra | None:
        return self._known.get((engine, incarnation))

    def all(self) -> tuple[CacheEra, ...]:
        return tuple(self._known.values())

    def learn(self, era: CacheEra) -> bool:
        """Somebody's news. False if it is none."""
        key = (era.engine, era.incarnation)
        known = self._known.get(key)
        if known is not None and (era.number, era.salt) <= (known.number, known.salt):
            return False
        if known is None and len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = era
        return True

    def found(self, era: CacheEra) -> None:
        """Our own news."""
        self.learn(era)
        for tell in self.on_new:
            tell(era)

    def prune(self, table: RoutingTable) -> None:
        """Forgets earlier starts of the table's engines: their caches are gone."""
        starts = {engine.id: engine.incarnation for model in table.models for engine in model.engines}
        for key in [key for key in self._known if key[1] < starts.get(key[0], 0)]:
            del self._known[key]

    def outdone(self, era: CacheEra) -> bool:
        """Whether nobody needs it any more."""
        known = self._known.get((era.engine, era.incarnation))
        return known is not None and (era.number, era.salt) < (known.number, known.salt)


class EraFile:
    """One line per era, sealed if there is a key. Written anew by whoever has news, so that it stays small."""

    def __init__(self, path: Path, key: signing.Secret | None) -> None:
        self._path = path
        self._key = key
        self._seen: Mark | None = None
        self._problem = ""
        self.held: frozenset[CacheEra] = frozenset()
        """What was there at the last look."""

    def read(self) -> frozenset[CacheEra]:
        """What is there. A file that everybody may write is not trusted."""
        try:
            info = self._path.stat()
            mark = (info.st_mtime_ns, info.st_size)
            if mark == self._seen:
                return self.held
            if info.st_mode & stat.S_IWOTH:
                self._complain("every user may write it; chmod o-w it")
                return self.held
            self._seen = mark
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            self.held = frozenset()
        except OSError as error:
            self._complain(error.strerror or type(error).__name__)
        else:
            self.held = frozenset(era for line in lines if (era := self._line(line)) is not None)
        return self.held

    def write(self, eras: Iterable[CacheEra]) -> None:
        """Everything that is known."""
        try:
            write_private(self._path, b"".join(self._text(era) + b"\n" for era in eras))
        except OSError as error:
            self._complain(error.strerror or type(error).__name__)

    def _text(self, era: CacheEra) -> bytes:
        document = encode(era)
        return signing.seal(self._key, document).encode() if self._key is not None else orjson.dumps(document)

    def _line(self, line: bytes) -> CacheEra | None:
        try:
            document = signing.unseal(self._key, line) if self._key is not None else orjson.loads(line)
            return decode(CacheEra, document)
        except ValueError as error:  # BadSignature, WrongShape, bad JSON
            self._complain(str(error))
            return None

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("%s: %s. After a restart engines may be asked under salts that are spoilt", self._path, problem)

"""Accepts or refuses routing tables, from a file, from Valkey or from the disk copy, and keeps that copy."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from controlplane.common.files import write_private
from controlplane.core import signing
from controlplane.core.codec import decode
from controlplane.core.protocol import RoutingTable

log = logging.getLogger(__name__)

FILE_POLL_S = 0.5
FileMark = tuple[int, int, int]
"""Time of change, size and inode."""


class TableRefused(ValueError):
    """A table that must not be applied; the message says why."""


class Tables:
    """The gate before `apply`: shape, signature and order. A refused table changes nothing and is logged once."""

    def __init__(
        self, apply: Callable[[RoutingTable], None], table_key: signing.Secret | None = None, cache: Path | None = None
    ) -> None:
        self._apply = apply
        self._key = table_key
        self._cache = cache
        self._stamp = (-1, -1)
        self._last: bytes | None = None
        self._last_refusal = ""

    def offer_plain(self, document: bytes, source: str) -> bool:
        """A table as JSON from a trusted file. True if it was applied."""
        return self._offer(document, source, lambda: orjson.loads(document))

    def offer_sealed(self, envelope: bytes, source: str, keep: bool = True) -> bool:
        """A signed table. True if it was applied; then the disk copy is renewed, unless it came from there."""
        key = self._key
        if key is None:
            raise ValueError("signed tables need the fleet secret")
        applied = self._offer(envelope, source, lambda: signing.unseal(key, envelope))
        if applied and keep and self._cache is not None:
            self._write_cache(self._cache, envelope)
        return applied

    def load_cache(self) -> bool:
        """Applies the disk copy, if there is a good one."""
        if self._cache is None:
            return False
        try:
            envelope = self._cache.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            self._refuse(f"disk copy: {error.strerror}")
            return False
        return self.offer_sealed(envelope, "disk copy", keep=False)

    def refuse(self, source: str, problem: str) -> None:
        """Notes that `source` had no table to offer, once per problem."""
        self._refuse(f"{source}: {problem}")

    def _offer(self, raw: bytes, source: str, read: Callable[[], Any]) -> bool:
        if raw == self._last:
            return False
        try:
            table = decode(RoutingTable, read())
            if table.stamp < self._stamp:
                raise TableRefused(f"{table.stamp} is older than {self._stamp}, which is in use")
            self._apply(table)
        except ValueError as error:  # WrongShape, BadSignature, bad JSON, TableRefused
            self._refuse(f"{source}: {error}")
            return False
        self._stamp, self._last, self._last_refusal = table.stamp, raw, ""
        return True

    def _refuse(self, problem: str) -> None:
        if problem != self._last_refusal:
            self._last_refusal = problem
            log.warning("routing table refused, the old one stays: %s", problem)

    def _write_cache(self, path: Path, envelope: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, envelope)
        except OSError as error:
            log.warning("the disk copy of the routing table was not written to %s: %s", path, error.strerror)


async def follow_file(path: Path, tables: Tables) -> None:
    """Offers `path` now and whenever it changes, forever."""
    seen: FileMark | None = None
    while True:
        seen = check_file(path, tables, seen)
        await asyncio.sleep(FILE_POLL_S)


def check_file(path: Path, tables: Tables, seen: FileMark | None) -> FileMark | None:
    """Offers `path` if it is not the file of `seen`. A file that every user may write is not trusted."""
    try:
        info = path.stat()
        mark = (info.st_mtime_ns, info.st_size, info.st_ino)
        if mark == seen:
            return seen
        if info.st_mode & stat.S_IWOTH:
            tables.refuse(str(path), "every user may write it; chmod o-w it")
        else:
            tables.offer_plain(path.read_bytes(), str(path))
        return mark
    except OSError as error:
        tables.refuse(str(path), error.strerror or type(error).__name__)
        return None

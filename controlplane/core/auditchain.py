"""Audit entries in one form for all time, and seals over batches of them, each of which holds the one before. Pure.

    row    = JSON array of the entry's fields (`canonical`), UTF-8
    digest = SHA-256(row), hexadecimal
    seal   = SHA-256(previous seal, line feed, "<id> <digest>", line feed, …), hexadecimal; the first follows GENESIS

Whoever changes, removes or inserts an entry later must change every seal from there on, and so the newest one, which is kept
elsewhere too (docs/audit.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True)
class Sealed:
    """A seal as it is stored. `rows`: id and digest of every entry, ids rising."""

    number: int
    previous: str
    rows: tuple[tuple[int, str], ...]
    digest: str


@dataclass(frozen=True)
class Broken:
    """The first place where entries and seals disagree. `entry` None: the seal itself."""

    seal: int
    entry: int | None
    what: str

    def __str__(self) -> str:
        return (
            f"entry {self.entry} {self.what} (seal {self.seal})"
            if self.entry is not None
            else f"seal {self.seal} {self.what}"
        )


def canonical(fields: Sequence[Any]) -> bytes:
    """Numbers, texts, and JSON values, in the order of the table's columns."""
    return json.dumps(list(fields), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_row(row: bytes) -> str:
    return hashlib.sha256(row).hexdigest()


def seal(previous: str, rows: Iterable[tuple[int, str]]) -> str:
    """The digest of a batch that follows the seal `previous`."""
    found = hashlib.sha256(previous.encode())
    for number, digest in rows:
        found.update(f"\n{number} {digest}".encode())
    return found.hexdigest()


def broken_seal(found: Sealed, before: Sealed | None) -> Broken | None:
    """Whether a seal follows the one before it and is over its own rows."""
    if found.number != (before.number if before else 0) + 1:
        return Broken((before.number if before else 0) + 1, None, "is missing")
    if found.previous != (before.digest if before else GENESIS):
        return Broken(found.number, None, "does not follow the one before it")
    if found.digest != seal(found.previous, found.rows):
        return Broken(found.number, None, "is not the digest of its rows")
    return None


def broken_rows(found: Sealed, entries: Mapping[int, str]) -> Iterator[Broken]:
    """Where the entries up to the seal's last id (`entries`: digest by id) are not those that it is over, by id."""
    sealed = dict(found.rows)
    for number in sorted(sealed.keys() | entries.keys()):
        if number not in entries:
            yield Broken(found.number, number, "is gone")
        elif number not in sealed:
            yield Broken(found.number, number, "was put in after it was sealed")
        elif sealed[number] != entries[number]:
            yield Broken(found.number, number, "was changed after it was sealed")

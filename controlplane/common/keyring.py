"""The fleet secret with those before and after it, in files that only their owner may read, read again when they change.

`fleet.key` is the present secret alone: nothing more is there until it is rotated. Beside it `fleet.key.ring` then has every
secret that is believed by its generation, and which of them is the present one. Both are replaced whole.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.common.files import KEY_BYTES, BadKey, open_document, read_key, write_private
from controlplane.core.signing import generation_of

WHAT = "the fleet secret"
MAX_RING_BYTES = 4096


@dataclass(frozen=True)
class Ring:
    """`keys` by generation; the present one and the next one if there is one are the highest."""

    generation: int
    keys: Mapping[int, bytes] = field(repr=False)

    @property
    def next(self) -> bytes | None:
        return self.keys.get(self.generation + 1)


class Keyring:
    """A core.signing.FleetKeys on files."""

    def __init__(self, path: Path) -> None:
        """Raises BadKey."""
        self.path = path
        self._seen = _mark(path)
        self.ring = read_ring(path)

    def refresh(self) -> None:
        """Read the files again if they are others than before. Raises BadKey; then what was read before stays."""
        now = _mark(self.path)
        if now != self._seen:
            self.ring = read_ring(self.path)
            self._seen = now

    @property
    def generation(self) -> int:
        return self.ring.generation

    @property
    def present(self) -> bytes:
        return self.ring.keys[self.ring.generation]

    @property
    def newest(self) -> bytes:
        return self.ring.keys[max(self.ring.keys)]

    @property
    def accepted(self) -> Sequence[bytes]:
        ring = self.ring
        return [ring.keys[ring.generation], *(key for number, key in ring.keys.items() if number != ring.generation)]

    def of_incarnation(self, incarnation: int) -> bytes:
        """The secret from which this start of an engine has its key; the present one if it is not there any more."""
        return self.ring.keys.get(generation_of(incarnation), self.present)


def ring_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.ring")


def read_ring(path: Path) -> Ring:
    """Raises BadKey."""
    ring = ring_path(path)
    if not ring.exists():
        return Ring(0, {0: read_key(path, WHAT)})
    try:
        with open_document(ring) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_RING_BYTES)
    except OSError as error:
        raise BadKey(f"cannot read {WHAT} {ring}: {error.strerror}") from error
    found = parse_ring(text, f"{WHAT} {ring}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadKey(f"{WHAT} {ring} is open to other users: chmod 600 {ring}")
    return found


def parse_ring(text: str | bytes, what: str) -> Ring:
    """What `ring_text` wrote; `what` it is, for the message. Raises BadKey."""
    try:
        document = json.loads(text)
        keys = {int(number): bytes.fromhex(key) for number, key in document["keys"].items()}
        found = Ring(int(document["present"]), keys)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadKey(f"{what} is damaged: put back a copy of it") from error
    if found.generation not in keys or any(number < 0 or len(key) != KEY_BYTES for number, key in keys.items()):
        raise BadKey(f"{what} is damaged: put back a copy of it")
    return found


def ring_text(ring: Ring) -> str:
    """All of it, in one line. A secret."""
    return json.dumps({"present": ring.generation, "keys": {str(number): key.hex() for number, key in ring.keys.items()}})


def write_ring(path: Path, ring: Ring) -> None:
    """Both files; a death between them leaves the ring, which is what counts. Raises OSError."""
    write_private(ring_path(path), ring_text(ring).encode())
    write_private(path, ring.keys[ring.generation])


def _mark(path: Path) -> tuple[object, ...]:
    return tuple(_stat(each) for each in (path, ring_path(path)))


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino

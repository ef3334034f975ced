"""This node's keys: the one it joined with, and newer ones that control has given it since, kept in the agent's own folder.

Engines that run keep the key they were started with; their records tell which by its mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from controlplane.common.files import KEY_BYTES, BadKey, open_document, write_private
from controlplane.core.signing import mark_of

MAX_KEYS = 4
MAX_FILE_BYTES = 4096


class NodeKeys:
    """A core.signing.Keys: facts are signed with the newest key, commands of all are believed."""

    def __init__(self, file: Path, base: bytes) -> None:
        """`base`: the key of the node's key file. One that is not known here is the newest: the node has joined again.
        Raises BadKey."""
        self._file = file
        keys, self._dropped = _read(file)
        known = [mark_of(key) for key in keys]
        self._keys = keys if mark_of(base) in (*known, *self._dropped) and keys else [base, *keys]

    @property
    def present(self) -> bytes:
        return self._keys[0]

    newest = present

    @property
    def accepted(self) -> Sequence[bytes]:
        return self._keys

    def of_mark(self, mark: str) -> bytes:
        """The key that is called so; the oldest for a record of before there were marks, or for none."""
        return next((key for key in self._keys if mark_of(key) == mark), self._keys[-1])

    def take(self, key: bytes, *, alone: bool) -> None:
        """A newer key, or the present one again. `alone`: the others are believed no more. Raises OSError."""
        others = [each for each in self._keys if each != key]
        if alone:
            self._dropped = [*(mark_of(each) for each in others), *self._dropped][:MAX_KEYS]
        self._keys = [key] if alone else [key, *others][:MAX_KEYS]
        document = {"keys": [each.hex() for each in self._keys], "dropped": self._dropped}
        write_private(self._file, json.dumps(document).encode())


def _read(file: Path) -> tuple[list[bytes], list[str]]:
    try:
        with open_document(file) as opened:
            document = json.loads(opened.read(MAX_FILE_BYTES))
        keys = [bytes.fromhex(each) for each in document["keys"]]
        dropped = [str(each) for each in document["dropped"]]
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadKey(f"the node's keys {file} cannot be read: remove it and let the node join again") from error
    if any(len(each) != KEY_BYTES for each in keys):
        raise BadKey(f"the node's keys {file} are damaged: remove it and let the node join again")
    return keys, dropped

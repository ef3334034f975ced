"""Keys of blocks: a hash of a block's tokens, of all before them, of the adapter and of the cache salt.

These are not the engines' hashes, which are slower to make (SHA-256 over pickled tuples) and differ between engines if their
algorithm draws a seed per process. Events carry the tokens of the blocks they tell of, so both names are known then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import msgpack
import xxhash

ID_CODE = "I"
ID_BYTES = array(ID_CODE).itemsize

_digest = xxhash.xxh3_64_intdigest


def root(adapter: str, salt: str) -> int:
    """Where a chain begins. `adapter` and `salt` are "" if there is none."""
    return _digest(f"{adapter}\0{salt}".encode("utf-8", "surrogatepass"))


def chain(tokens: array[int], block_size: int, key: int) -> list[int]:
    """The keys of all full blocks of a prompt that begins at `key`."""
    keys, step = [], block_size * ID_BYTES
    raw = memoryview(tokens).cast("B")
    for end in range(step, len(raw) + 1, step):
        key = _digest(raw[end - step : end], key)
        keys.append(key)
    return keys


def next_key(key: int, block: bytes | memoryview) -> int:
    """The key of a block with these tokens, as bytes of an array of ID_CODE, after the block with `key`."""
    return _digest(block, key)


def with_extras(key: int, extras: Iterable[Any]) -> int:
    """The key before a block that something else than tokens tells apart, such as a picture."""
    return _digest(msgpack.packb(list(extras)), key)

"""vLLM's hash chain over the full blocks of a prompt: what its prefix cache and its KV events name blocks by.

As vLLM 0.32 computes it (v1/core/kv_cache_utils.py, utils/hashing.py): hash of (parent's hash, token ids, extra keys), the
first parent being the hash of a seed. With the SHA-256 algorithms and no PYTHONHASHSEED in their environment all engines
use the same seed, so that equal prompts have equal hashes everywhere. vLLM's xxhash ones draw a seed per process and can
be compared with nothing; they are not offered.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Literal

Algorithm = Literal["sha256", "sha256_cbor"]
ALGORITHMS: tuple[Algorithm, ...] = ("sha256", "sha256_cbor")
"""The first is vLLM's default."""
SEED = "vllm-none-hash"
"""vLLM's DEFAULT_NONE_HASH_SEED. PYTHONHASHSEED in an engine's environment replaces it."""

ExtraKeys = tuple[tuple[Any, ...], ...] | None
"""What else tells a block apart, as vLLM's tagged keys: ("lora", name, path), ("mm", id, offset), ("cache_salt", salt)."""

_LOW_64 = (1 << 64) - 1


def salt_keys(salt: str) -> ExtraKeys:
    """The extra keys of a prompt's first block with this cache_salt; "" is none. Later blocks have none, they inherit it."""
    return (("cache_salt", salt),) if salt else None


def event_hash(digest: bytes) -> int:
    """A block's hash as KV events carry it (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES, on by default): its low 64 bits."""
    return int.from_bytes(digest, "big") & _LOW_64


class PrefixHasher:
    """Hashes blocks. Raises ValueError for an algorithm that is not in ALGORITHMS."""

    def __init__(self, algorithm: str = "sha256", seed: str = SEED) -> None:
        dump = _DUMPS.get(algorithm)
        if dump is None:
            raise ValueError(f"prefix_caching_hash_algo must be one of {', '.join(ALGORITHMS)}, got {algorithm!r:.40}")
        self._dump = dump
        self.none_hash = sha256(dump(seed)).digest()

    def block(self, parent: bytes | None, tokens: Sequence[int], extra: ExtraKeys = None) -> bytes:
        """The hash of a full block after a block with hash `parent`, or of a prompt's first block."""
        return sha256(self._dump((parent or self.none_hash, tuple(tokens), extra))).digest()

    def chain(self, tokens: Sequence[int], block_size: int, salt: str = "") -> list[bytes]:
        """The hashes of all full blocks of a prompt, in order. A trailing part of a block has none."""
        dump, parent, extra = self._dump, self.none_hash, salt_keys(salt)
        hashes: list[bytes] = []
        for start in range(0, len(tokens) - block_size + 1, block_size):
            parent = sha256(dump((parent, tuple(tokens[start : start + block_size]), extra))).digest()
            extra = None
            hashes.append(parent)
        return hashes


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _cbor(value: Any) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1) of what a hash is made of: texts, bytes, whole numbers, sequences and None."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return _cbor_head(3, len(raw)) + raw
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))


def _cbor_head(major: int, number: int) -> bytes:
    for extra, size in enumerate((1, 2, 4, 8)):
        if number < 24:
            return bytes((major << 5 | number,))
        if number < 1 << 8 * size:
            return bytes((major << 5 | 24 + extra,)) + number.to_bytes(size, "big")
    raise ValueError(f"{number} is no token id")


_DUMPS: dict[str, Callable[[Any], bytes]] = {"sha256": _pickled, "sha256_cbor": _cbor}

"""Reads vLLM's KV events: msgpack batches of an engine, as they come from the network. Pure.

Whoever reaches the port can send anything, so every field is checked; a batch with a mistake is refused whole. Events of
other media than the GPU and of layers that do not see the whole prompt are left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from controlplane.indexer.blocks import ID_CODE

MAX_BATCH_BYTES = 8 << 20
MAX_BLOCK_TOKENS = 4096
MAX_NAME = 1024
_KINDS = (None, "full_attention", "mla_attention")
_MEDIA = (None, "GPU")


class BadBatch(ValueError):
    """Not what vLLM sends."""


@dataclass(frozen=True, slots=True)
class Stored:
    hashes: Sequence[int | bytes]
    parent: int | bytes | None
    tokens: array[int]
    block_size: int
    adapter: str
    extras: Sequence[Any]
    """One per block, or none at all."""
    group: int
    """Of layers with equal caches; an engine with several tells each block once for each."""


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: Sequence[int | bytes]
    group: int


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Cleared


def read(payload: bytes) -> list[Event]:
    """The events of a batch, in order. Raises BadBatch."""
    if len(payload) > MAX_BATCH_BYTES:
        raise BadBatch("it is too large")
    try:
        batch = msgpack.unpackb(payload)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise BadBatch("it is not msgpack") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise BadBatch("it is not [time, events, …]")
    return [event for each in batch[1] if (event := _event(each)) is not None]


def _event(raw: Any) -> Event | None:
    if not isinstance(raw, dict):
        raise BadBatch("an event is no map")
    kind = raw.get("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None  # a newer engine's
    if raw.get("medium") not in _MEDIA:
        return None
    hashes = raw.get("block_hashes")
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        raise BadBatch("block_hashes is no list of hashes")
    group = raw.get("group_idx") or 0
    if type(group) is not int:
        raise BadBatch("group_idx is no number")
    if kind == "BlockRemoved":
        return Removed(hashes, group)
    return _stored(raw, hashes, group) if raw.get("kv_cache_spec_kind") in _KINDS else None


def _stored(raw: dict[str, Any], hashes: list[int | bytes], group: int) -> Stored:
    parent, size, extras = raw.get("parent_block_hash"), raw.get("block_size"), raw.get("extra_keys") or ()
    adapter = raw.get("lora_name") or ""
    if parent is not None and not _is_hash(parent):
        raise BadBatch("parent_block_hash is no hash")
    if type(size) is not int or not 0 < size <= MAX_BLOCK_TOKENS:
        raise BadBatch("block_size is no such size")
    if not isinstance(adapter, str) or len(adapter) > MAX_NAME:
        raise BadBatch("lora_name is no name")
    if not isinstance(extras, list | tuple) or (extras and len(extras) != len(hashes)) or not all(map(_is_extra, extras)):
        raise BadBatch("extra_keys is not one for each block")
    ids = raw.get("token_ids")
    if not isinstance(ids, list | tuple):  # array() would take bytes for its memory
        raise BadBatch("token_ids is no list of token ids")
    try:
        tokens = array(ID_CODE, ids)
    except (TypeError, OverflowError) as error:
        raise BadBatch("token_ids is no list of token ids") from error
    if len(tokens) != size * len(hashes):
        raise BadBatch("token_ids does not fill the blocks")
    return Stored(hashes, parent, tokens, size, adapter, extras, group)


def _is_hash(value: object) -> bool:
    return type(value) is int or (type(value) is bytes and len(value) <= 64)


def _is_extra(value: object) -> bool:
    """Names, and pairs of a picture's name and its place."""
    return value is None or (
        isinstance(value, list)
        and all(isinstance(each, str | int | bytes) or (isinstance(each, list) and _is_extra_pair(each)) for each in value)
    )


def _is_extra_pair(value: list[object]) -> bool:
    return all(isinstance(each, str | int | bytes) for each in value)

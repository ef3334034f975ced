"""A request's prompt as a chain of hashes, for the index of who holds which prefix (core.kvindex).

The text that is hashed is not what a chat template makes of the messages, but it grows as that does: tools first, then every
message in order. Model (or LoRA adapter) and `cache_salt` seed the chain, so that only caches that an engine would share are
found. Blocks grow from 512 bytes (about 128 tokens, for short system prompts) to 2 kB: 32 kB of prompt take about 10 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson
import xxhash

from controlplane.core.kvindex import NO_PREFIX, Prefix
from controlplane.router.bodies import IMAGE_TOKENS

BLOCK_BYTES = 2048
BYTES_PER_TOKEN = 4
"""The same guess as `bodies.prompt_tokens`."""
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
MAX_BLOCKS = 2048
"""What comes after 4 MB of prompt is not hashed."""

ENDS = (512, 1024, *(BLOCK_BYTES * number for number in range(1, MAX_BLOCKS - 1)))
_BOUNDS = tuple(pairwise((0, *ENDS)))

_BEFORE_MESSAGES = ("tools", "functions", "documents", "chat_template", "chat_template_kwargs", "system", "instructions")
_ANY_BEFORE_MESSAGES = frozenset(_BEFORE_MESSAGES)
_SESSION_FIELDS = ("session_id", "prompt_cache_key", "user", "safety_identifier")
_ANY_SESSION = frozenset(_SESSION_FIELDS)
_SESSION_LENGTH = 256

_DIGEST = xxhash.xxh3_64_intdigest


def of(data: Mapping[str, Any], model: str) -> Prefix:
    """The prefix of a parsed body. Never raises for what orjson has read."""
    text = _text(data).encode("utf-8", "surrogatepass")
    if len(text) < ENDS[0]:
        return NO_PREFIX
    salt = data.get("cache_salt")
    key = _DIGEST((model if salt is None else f"{model}\0{salt}").encode("utf-8", "surrogatepass"))
    keys, view, size = [], memoryview(text), len(text)
    for start, end in _BOUNDS:
        if end > size:
            break
        key = _DIGEST(view[start:end], key)
        keys.append(key)
    return Prefix(keys, ENDS, size)


def session(data: Mapping[str, Any]) -> bytes | None:
    """Who the client says it is, in OpenAI's fields, if it sent no x-session-id."""
    if _ANY_SESSION.isdisjoint(data):
        return None
    for name in _SESSION_FIELDS:
        value = data.get(name)
        if isinstance(value, str) and 0 < len(value) <= _SESSION_LENGTH:
            return value.encode("utf-8", "surrogatepass")
    return None


def _text(data: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if not _ANY_BEFORE_MESSAGES.isdisjoint(data):
        parts += [_json(data[name]) for name in _BEFORE_MESSAGES if data.get(name)]
    messages = data.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict) and len(message) == 2 and isinstance(message.get("content"), str):
                parts.append(f"\0{message.get('role')}\0{message['content']}")
            else:
                parts.append(_message(message))
    prompt = data.get("prompt", data.get("input"))
    if prompt is not None:
        parts.append(prompt if isinstance(prompt, str) else _json(prompt))
    return parts[0] if len(parts) == 1 else "".join(parts)


def _message(message: Any) -> str:
    """One that is more than a role and a text."""
    if not isinstance(message, dict):
        return _json(message)
    content = message.get("content")
    pieces = content if isinstance(content, list) else [content]
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    texts = [piece if isinstance(piece, str) else _piece(piece) for piece in pieces if piece is not None]
    return f"\0{message.get('role')}\0{''.join(texts)}{_json(rest) if rest else ''}"


def _piece(piece: Any) -> str:
    """A text, or what stands for an image or the like: the same for the same one, as long as its tokens are."""
    if isinstance(piece, dict) and isinstance(piece.get("text"), str):
        return str(piece["text"])
    return xxhash.xxh3_64_hexdigest(orjson.dumps(piece)) * (IMAGE_TOKENS * BYTES_PER_TOKEN // 16)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

"""A request's prompt as token ids: those that its engine would make of it, or none if that is not sure.

Token ids in the request are taken as they are. Anything else is asked of one of the model's engines (`/tokenize`: its own
tokenizer and chat template) and remembered. Long prompts are not waited for: until their tokens are there, those of the
longest known prompt that begins alike stand for their beginning, such as a chat's last turn.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
import xxhash

from controlplane.indexer.blocks import ID_BYTES, ID_CODE
from controlplane.router import legs
from controlplane.router.limits import Limits
from controlplane.router.pool import Pool
from controlplane.router.upstream import Fault

WAIT_BYTES = 16 * 1024
"""What an engine can tokenize within a router's patience. Longer prompts are asked for, and not waited for."""
STEP_BYTES = 2048
"""Beginnings are compared in blocks of this size."""
MAX_BEGINNINGS = 200_000
SURE_SHARE, SURE_LESS = 0.9, 32
"""Where in its tokens a shared beginning ends is told by proportion. This share of them, and so many less, are taken to be
surely shared: tokens are not equally long everywhere."""
MAX_ASKING = 16
PATIENCE_S = 5.0
MAX_ANSWER_BYTES = 32 << 20

CHAT = "/v1/chat/completions"
_CHAT_FIELDS = (
    "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template",
    "chat_template_kwargs", "messages",
)  # fmt: skip
"""What /tokenize takes, and means the same as in a request."""
_UNSURE = frozenset({
    "documents", "functions", "function_call", "reasoning_effort", "thinking", "truncate_prompt_tokens", "prompt_embeds",
    "media_io_kwargs", "mm_processor_kwargs", "suffix",
})  # fmt: skip
"""What makes other tokens in a request and is not told to /tokenize."""


class Known(NamedTuple):
    tokens: array[int]
    """The prompt's, or those that it surely begins with."""
    prompt_tokens: int
    """How many it has in all, perhaps estimated."""

    @property
    def all(self) -> bool:
        return len(self.tokens) == self.prompt_tokens


def question(path: str, data: Mapping[str, Any], model: str) -> dict[str, Any] | array[int] | None:
    """The token ids if the request says them, else a body for /tokenize; None if the tokens could not be told for sure."""
    if any(data.get(name) for name in _UNSURE & data.keys()):
        return None
    if path == CHAT:
        messages = data.get("messages")
        if not isinstance(messages, list) or not all(map(_is_text, messages)):
            return None
        if data.get("tools") and data.get("tool_choice") not in (None, "auto"):
            return None
        # What grows comes last, so that bodies that begin alike are prompts that begin alike.
        return {"model": model, **{name: data[name] for name in _CHAT_FIELDS if data.get(name) is not None}}
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        extra = {"add_special_tokens": data["add_special_tokens"]} if data.get("add_special_tokens") is not None else {}
        return {"model": model, **extra, "prompt": prompt}
    return _ids(prompt)


def _is_text(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return all(
        part is None or isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in parts
    )


def _ids(value: object) -> array[int] | None:
    if not isinstance(value, list):
        return None
    try:
        return array(ID_CODE, value)
    except (TypeError, OverflowError):
        return None


class Tokens:
    """Asks engines, and remembers up to `max_bytes` of token ids, least recently used first."""

    def __init__(self, limits: Limits, max_bytes: int = 128 << 20) -> None:
        self._limits = limits
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, tuple[array[int], int]] = OrderedDict()
        """Digest of a body -> its tokens and its size."""
        self._beginnings: OrderedDict[int, bytes] = OrderedDict()
        """Hash of a body's beginning -> digest of the last body that began so."""
        self._asking: dict[bytes, asyncio.Task[array[int] | None]] = {}
        self._pools: dict[str, Pool] = {}
        self._size = 0
        self._turn = 0
        self.asked = 0

    async def of(self, path: str, data: Mapping[str, Any], model: str, urls: list[str]) -> Known | None:
        """The prompt's token ids, or what it begins with; None if not even that is known now. `urls`: of the model's
        engines."""
        ask = question(path, data, model)
        if ask is None:
            return None
        if isinstance(ask, array):
            return Known(ask, len(ask))
        body = orjson.dumps(ask)
        name = xxhash.xxh3_128_digest(body)
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return Known(known[0], len(known[0]))
        task = self._asking.get(name)
        if task is None and urls and len(self._asking) < MAX_ASKING:
            self._turn += 1
            task = self._spawn(name, body, self._ask(urls[self._turn % len(urls)], body))
        if len(body) > WAIT_BYTES or task is None:
            return self._beginning(body)
        tokens = await asyncio.shield(task)
        return Known(tokens, len(tokens)) if tokens is not None else None

    def _beginning(self, body: bytes) -> Known | None:
        """Of the known body that shares the longest beginning with this one."""
        marks = _marks(body)
        for place in range(len(marks) - 1, -1, -1):
            name = self._beginnings.get(marks[place])
            known = self._known.get(name) if name is not None else None
            if known is not None:
                tokens, size = known
                shared = int(len(tokens) * (place + 1) * STEP_BYTES / size * SURE_SHARE) - SURE_LESS
                if shared <= 0:
                    return None
                return Known(tokens[:shared], max(shared + 1, len(tokens) * len(body) // size))
        return None

    def sweep(self) -> None:
        """Called about twice a second."""
        for pool in self._pools.values():
            pool.sweep(time.monotonic())

    def forget_engines(self, urls: set[str]) -> None:
        """All others have left."""
        for url in self._pools.keys() - urls:
            self._pools.pop(url).close()

    def _spawn(
        self, name: bytes, body: bytes, work: Coroutine[Any, Any, array[int] | None]
    ) -> asyncio.Task[array[int] | None]:
        task = self._asking[name] = asyncio.get_running_loop().create_task(work)

        def done(task: asyncio.Task[array[int] | None]) -> None:
            del self._asking[name]
            tokens = None if task.cancelled() else task.result()
            if tokens is not None:
                self._keep(name, body, tokens)

        task.add_done_callback(done)
        return task

    def _keep(self, name: bytes, body: bytes, tokens: array[int]) -> None:
        self._known[name] = (tokens, len(body))
        for mark in _marks(body):
            self._beginnings[mark] = name
            self._beginnings.move_to_end(mark)
        while len(self._beginnings) > MAX_BEGINNINGS:
            self._beginnings.popitem(last=False)
        self._size += len(tokens) * ID_BYTES
        while self._size > self._max_bytes:
            _, (oldest, _) = self._known.popitem(last=False)
            self._size -= len(oldest) * ID_BYTES

    async def _ask(self, url: str, body: bytes) -> array[int] | None:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = Pool(url, self._limits)
        self.asked += 1
        host = urlsplit(url).netloc.encode()
        request = b"POST /tokenize HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        outcome = await legs.run(
            pool, request % (host, len(body), body), legs.Collector(MAX_ANSWER_BYTES), PATIENCE_S, self._limits
        )
        if isinstance(outcome, Fault) or outcome.status != 200:
            return None
        try:
            document = orjson.loads(outcome.body)
        except orjson.JSONDecodeError:
            return None
        return _ids(document.get("tokens")) if isinstance(document, dict) else None


def _marks(body: bytes) -> list[int]:
    """Hashes of a body's beginnings: of its first block, its first two, …"""
    marks, mark, view = [], 0, memoryview(body)
    for start, end in pairwise(range(0, len(body) + 1, STEP_BYTES)):
        mark = xxhash.xxh3_64_intdigest(view[start:end], mark)
        marks.append(mark)
    return marks

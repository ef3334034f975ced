"""The smallest HTTP client that is enough here: one request a connection, the answer counted and thrown away."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class RouterUnavailable(Exception):
    """The router could not be reached, or closed the connection before it answered."""


@dataclass(frozen=True)
class Answer:
    """What came back for a streamed request. `whole`: answered to its end. `prompt_tokens`: as the engine counted them, 0 if
    it did not say."""

    whole: bool
    prompt_tokens: int = 0


class Router:
    """A router at `url` (http://HOST:PORT)."""

    def __init__(self, url: str, timeout_s: float = 300.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"not a router URL: {url} (expected http://HOST:PORT)")
        self._host, self._port = parts.hostname, parts.port or 80
        self._timeout_s = timeout_s

    async def models(self) -> list[str]:
        """Names of the models the router offers. Raises RouterUnavailable."""
        status, body = await self._exchange("GET", "/v1/models", b"")
        try:
            return [entry["id"] for entry in json.loads(body)["data"]] if status == 200 else []
        except (ValueError, KeyError, TypeError) as error:
            raise RouterUnavailable(f"the router's list of models is not readable: {type(error).__name__}") from error

    async def chat(self, request: dict[str, Any]) -> Answer:
        """Sends a streamed chat request. Raises RouterUnavailable."""
        status, body = await self._exchange("POST", "/v1/chat/completions", json.dumps(request).encode())
        whole = status == 200 and b"data: [DONE]" in body[-64:]
        return Answer(whole, _prompt_tokens(body) if whole else 0)

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._talk(method, path, body)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, IndexError) as error:
            raise RouterUnavailable(f"{type(error).__name__}: {error}") from error

    async def _talk(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            answer_head = await reader.readuntil(b"\r\n\r\n")
            chunked = b"transfer-encoding: chunked" in answer_head.lower()
            answer = await reader.read(-1)
            return int(answer_head.split(b" ", 2)[1]), _dechunked(answer) if chunked else answer
        finally:
            writer.close()


def _prompt_tokens(body: bytes) -> int:
    """Of the usage event, the last before the end."""
    event = body.rstrip().removesuffix(b"data: [DONE]").rstrip().rpartition(b"data: ")[2]
    try:
        return int(json.loads(event)["usage"]["prompt_tokens"])
    except (ValueError, KeyError, TypeError):
        return 0


def _dechunked(data: bytes) -> bytes:
    """The body inside chunked framing (RFC 9112, section 7.1)."""
    parts = []
    while data:
        size_line, _, data = data.partition(b"\r\n")
        size = int(size_line.split(b";")[0], 16)
        if size == 0:
            break
        parts.append(data[:size])
        data = data[size + 2 :]
    return b"".join(parts)

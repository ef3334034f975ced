"""A cheap engine and cheap clients, for very many connections in one process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any, cast

from tests.integration.router_raw import post

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_KV = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [1], "remote_host": "127.0.0.1"}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class SwarmEngine:
    """Prefills, and streams events, one every `step_s`. It counts what is open."""

    id: str
    step_s: float = 0.005
    port: int = 0
    served: int = 0
    """Requests with a body."""
    open: set[_Serving] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def working(self) -> int:
        return sum(connection.timer is not None for connection in self.open)

    async def start(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Serving(self), "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        return server


class _Serving(asyncio.Protocol):
    def __init__(self, engine: SwarmEngine) -> None:
        self.engine = engine
        self.timer: asyncio.TimerHandle | None = None
        self._data = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.engine.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.open.discard(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        length = int(found[1]) if (found := _LENGTH.search(head + b"\r\n")) else 0
        if end and len(rest) >= length:
            self._data = rest[length:]
            self._answer(json.loads(rest[:length]) if length else {})

    def _answer(self, body: dict[str, Any]) -> None:
        self.engine.served += bool(body)
        if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            self._later(self._prefilled)
        elif body.get("stream"):
            asked = body.get("max_tokens")
            self._left = asked if type(asked) is int and 0 < asked < 100 else 4
            self.transport.write(STREAM_HEAD)
            self._later(self._step)
        else:
            self._json({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})

    def _later(self, work: Any) -> None:
        self.timer = asyncio.get_running_loop().call_later(self.engine.step_s, work)

    def _prefilled(self) -> None:
        self.timer = None
        self._json({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3}, "kv_transfer_params": _KV})

    def _json(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def _step(self) -> None:
        self.timer = None
        if self._left > 0:
            self._left -= 1
            self._event(b'data: {"choices":[{"index":0,"text":" tok"}]}\n\n')
            self._later(self._step)
        else:
            self._event(b"data: [DONE]\n\n")
            self.transport.write(b"0\r\n\r\n")

    def _event(self, event: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))


def streaming_request(tokens: int, prompt: str = "hello") -> bytes:
    return post(json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True}).encode())


class SwarmClient(asyncio.Protocol):
    """Sends, and keeps what comes. `ended` is set when the stream is complete or the connection is over."""

    def __init__(self) -> None:
        self.got = b""
        self.ended = asyncio.Event()
        self.heard = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.heard.set()
        if self.got.endswith(b"0\r\n\r\n"):
            self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.set()
        self.ended.set()


async def connect(port: int) -> SwarmClient:
    _, client = await asyncio.get_running_loop().create_connection(SwarmClient, "127.0.0.1", port)
    return client


@contextmanager
def many_files() -> Iterator[None]:
    """Lets this process have a socket at each end of very many connections."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_NOFILE, (soft, hard))

"""The agent's HTTP client against real sockets that answer well, badly or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from controlplane.common import engineclient as module
from controlplane.common.engineclient import EngineClient, EngineSilent

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Answerer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(answer: Answerer) -> AsyncIterator[EngineClient]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = EngineClient("127.0.0.1", server.sockets[0].getsockname()[1], "the-key")
    try:
        yield client
    finally:
        client.close()
        server.close()
        await server.wait_closed()


def says(*answers: bytes) -> Answerer:
    """One answer per request of a connection, which is closed after the last."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(each)

    return answer


async def test_one_connection_serves_many_requests_with_the_key() -> None:
    connections, requests = 0, []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)

    async with engine(answer) as client:
        for _ in range(3):
            assert (await client.get("/metrics", 5)).body == b"hi"
    assert connections == 1 and len(requests) == 3
    assert requests[0].startswith(b"GET /metrics HTTP/1.1\r\n") and b"Authorization: Bearer the-key\r\n" in requests[0]
    assert "the-key" not in repr(client)


async def test_a_get_on_a_connection_that_was_closed_while_idle_is_asked_again() -> None:
    async with engine(says(OK)) as client:
        for _ in range(3):
            assert (await client.get("/", 5)).status == 200


async def test_a_chunked_answer_is_read_whole() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with engine(says(chunked)) as client:
        assert (await client.get("/", 5)).body == b"abcde"


async def test_a_post_carries_json_and_is_never_sent_twice() -> None:
    received = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.append(json.loads(await reader.readexactly(8)))

    async with engine(answer) as client:
        with pytest.raises(EngineSilent, match="closed the connection"):
            await client.post("/v1/completions", {"a": 1}, 5)
    assert received == [{"a": 1}]


async def test_an_engine_that_says_nothing_is_silent_after_the_timeout() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(answer) as client:
        with pytest.raises(EngineSilent, match=r"no answer to GET /health within 0\.2 s"):
            await client.get("/health", 0.2)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000, "too long"),
    ],
)
async def test_an_answer_that_is_none_is_refused(answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 1000)
    async with engine(says(answer)) as client:
        with pytest.raises(EngineSilent, match=why):
            await client.get("/", 5)


async def test_a_port_nobody_listens_on_is_silence() -> None:
    async with engine(says(OK)) as client:
        pass
    with pytest.raises(EngineSilent, match="GET /"):
        await client.get("/", 5)

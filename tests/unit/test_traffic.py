"""The demonstration traffic sends what the trace sample says, and survives a router that is away or talks nonsense."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from controlplane.traffic.client import Answer, Router, RouterUnavailable
from controlplane.traffic.generator import Generator
from controlplane.traffic.lengths import Lengths, load_lengths

Replies = Callable[[bytes], bytes]
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Replies], Awaitable[str]]]:
    servers: list[asyncio.Server] = []

    async def start(answer: Replies) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            writer.write(answer(head + await reader.readexactly(length)))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


def test_the_sample_keeps_the_traces_lengths_within_the_limits() -> None:
    lengths = load_lengths(4096, 400)
    assert len(lengths) == 480
    assert 900 < sum(each.prompt_tokens for each in lengths) / 480 < 1200
    assert max(each.answer_tokens for each in lengths) == 400


async def test_a_chunked_stream_counts_as_answered_only_with_its_end(serve) -> None:
    whole = await serve(lambda _: CHUNKED + b"6\r\ndata: \r\nc\r\n1\n\ndata: [DO\r\n5\r\nNE]\n\n\r\n0\r\n\r\n")
    cut = await serve(lambda _: CHUNKED + b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")
    assert await Router(whole).chat({"model": "m"}) == Answer(whole=True)
    assert await Router(cut).chat({"model": "m"}) == Answer(whole=False)


async def test_prompts_come_to_the_wanted_length_by_what_the_engines_count(serve) -> None:
    sizes: list[int] = []
    stop = asyncio.Event()

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "m"}]}'
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        tokens = sum(len(message["content"]) for message in body["messages"]) // 3  # 3 characters a token
        sizes.append(tokens)
        if len(sizes) == 60:
            stop.set()
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": tokens}}).encode()
        return b"HTTP/1.1 200 OK\r\n\r\ndata: %b\n\ndata: [DONE]\n\n" % usage

    generator = Generator(Router(await serve(answer)), [Lengths(500, 7)], 100.0, random.Random(1))
    async with asyncio.timeout(60):
        await generator.run(stop)
    assert sizes[0] > 600
    assert abs(sizes[-1] - 500) < 10


@pytest.mark.parametrize("nonsense", [b"", b"garbage\r\n\r\n", CHUNKED + b"zz\r\n"])
async def test_nonsense_from_a_router_is_an_unavailable_router(serve, nonsense: bytes) -> None:
    with pytest.raises(RouterUnavailable):
        await Router(await serve(lambda _: nonsense)).chat({"model": "m"})


async def test_requests_carry_the_traces_lengths_to_the_offered_model(serve) -> None:
    seen: list[dict] = []
    stop = asyncio.Event()

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET"):
            return b'HTTP/1.1 200 OK\r\n\r\n{"data": [{"id": "m"}]}'
        seen.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        if len(seen) == 3:
            stop.set()
        return b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n"

    generator = Generator(Router(await serve(answer)), [Lengths(500, 7)], 100.0, random.Random(1))
    async with asyncio.timeout(20):
        await generator.run(stop)
    assert {(request["model"], request["max_tokens"]) for request in seen} == {("m", 7)}
    assert all(len(request["messages"][1]["content"]) + len(request["messages"][0]["content"]) == 2000 for request in seen)

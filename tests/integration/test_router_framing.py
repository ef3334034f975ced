"""Bodies in chunks from both sides, what waits for a slow client, and the order of interim and final answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg
from tests.integration.router_kit import TEXT, fakes, running, until, whole_model
from tests.integration.router_raw import exchange, post

BODY = json.dumps(TEXT).encode()
CLOSE = "connection: close"
MB = 1024 * 1024


def in_chunks(data: bytes, size: int, trailer: bytes = b"") -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"


def answers_in_chunks(document: object, size: int) -> act.Act:
    async def answer(engine: FakeEngine, leg: Leg) -> None:
        leg.writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        leg.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        leg.writer.write(in_chunks(json.dumps(document).encode(), size, trailer=b"x-checksum: 1\r\n"))
        await leg.writer.drain()

    return answer


async def test_a_whole_answer_in_chunks_is_put_together(tmp_path: Path) -> None:
    document = {"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [answers_in_chunks(document, 5)]
        response = await kit.post(TEXT)
        assert (response.status_code, response.json()) == (200, document)
        assert response.headers["content-length"] == str(len(response.content))
        assert "link" not in response.headers
        assert (await kit.post(TEXT)).status_code == 200
        assert engine.connections == 1


async def test_a_large_whole_answer_in_chunks_stays_in_chunks(tmp_path: Path) -> None:
    document = {"choices": [{"text": "x" * 3 * MB}]}
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [answers_in_chunks(document, 10_000)]
        response = await kit.post(TEXT)
        assert response.headers["transfer-encoding"] == "chunked"
        assert response.json() == document


async def test_requests_in_chunks_may_follow_each_other(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        bodies = [json.dumps({**TEXT, "prompt": f"p{number}"}).encode() for number in range(3)]
        raw = b"".join(head + in_chunks(body, 9, b"a: b\r\n") for body in bodies)
        answer = await exchange(kit.port, raw + post(BODY, CLOSE))
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 4
        assert [leg.raw for leg in engine.legs] == [*bodies, BODY]


async def test_a_body_is_asked_for_when_its_turn_has_come(tmp_path: Path) -> None:
    """An interim answer in the middle of an earlier request's answer would be taken for that."""
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        go = asyncio.Event()
        engine.acts = [act.once(go.wait)]
        reader, writer = await asyncio.open_connection("127.0.0.1", kit.port)
        second = post(BODY, "expect: 100-continue", CLOSE)
        writer.write(post(BODY) + second[: -len(BODY)])
        await until(lambda: engine.legs)
        go.set()
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["choices"]
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_what_waits_for_a_client_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    async def endless(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        while True:
            await act.send_event(leg, act.event(leg.body, "x" * 10_000))

    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.always = endless
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", kit.port, limit=1024)
            writer.write(post(json.dumps({**TEXT, "stream": True}).encode()))
            writers.append(writer)
        clients = kit.router.clients
        await until(lambda: len(clients) == 4 and all(client.source and client.source.paused for client in clients), "full")
        for client in clients:
            assert client._transport is not None
            # The mark at which it is full, and what one read may bring after that.
            assert client._transport.get_write_buffer_size() <= 64 * 1024 + 256 * 1024 + 1024
        for writer in writers:
            writer.transport.abort()
        await until(kit.idle, "idle")

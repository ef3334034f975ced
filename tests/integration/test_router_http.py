"""HTTP/1.1 at its edges: split, slow, pipelined, chunked, endless and broken requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core.protocol import KeyEntry
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg
from tests.integration.router_kit import QUICK, TEXT, fakes, running, until, whole_model
from tests.integration.router_raw import exchange, post

BODY = json.dumps(TEXT).encode()
CLOSE = "connection: close"


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\ndate:", answer)]


async def test_a_request_in_single_bytes_is_one_request(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        raw = post(BODY, CLOSE)
        answer = await exchange(kit.port, *(raw[index : index + 1] for index in range(len(raw))))
        assert statuses(answer) == [200]
        assert engine.legs[0].raw == BODY


async def test_a_chunked_body_is_put_together(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        chunks = b"".join(
            b"%x;ext=1\r\n%b\r\n" % (len(BODY[at : at + 7]), BODY[at : at + 7]) for at in range(0, len(BODY), 7)
        )
        answer = await exchange(kit.port, head, chunks + b"0\r\ntrailer: x\r\n\r\n")
        assert statuses(answer) == [200]
        assert engine.legs[0].raw == BODY


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [act.later(0.1), act.behave, act.later(0.05)]
        bodies = [json.dumps({**TEXT, "prompt": f"p{number}"}).encode() for number in range(3)]
        get = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
        raw = get + post(bodies[0]) + get + post(bodies[1]) + post(b"{") + post(bodies[2], CLOSE) + get
        answer = await exchange(kit.port, raw)
        assert statuses(answer) == [200, 200, 200, 200, 400, 200]
        assert [leg.body["prompt"] for leg in engine.legs] == ["p0", "p1", "p2"]


async def test_a_flood_of_pipelined_requests_is_bounded(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=replace(QUICK, pipelined=5)) as kit:
        engine.acts = [act.later(0.1)]
        answer = await exchange(kit.port, post(BODY) + b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
        assert 1 < len(statuses(answer)) < 10
        assert set(statuses(answer)) == {200}


async def test_expect_continue_is_answered_before_the_body(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        reader, writer = await asyncio.open_connection("127.0.0.1", kit.port)
        raw = post(BODY, "expect: 100-continue", CLOSE)
        head, body = raw[: -len(BODY)], raw[-len(BODY) :]
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert statuses(await reader.read()) == [200]
        writer.close()


async def test_expect_continue_with_a_body_too_large_is_refused_at_once(tmp_path: Path) -> None:
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, body_bytes=100)) as kit,
    ):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 101\r\nexpect: 100-continue\r\n\r\n"
        assert statuses(await exchange(kit.port, head)) == [413]


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"A" * 100_000,
    b"GET /livez HTTP/2.0\r\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\n"
    b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n"
    b"content-encoding: identity\r\ncontent-length: 2\r\n\r\n{}",
    b"GET /livez HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("raw", GARBAGE, ids=lambda raw: repr(raw)[:40])
async def test_garbage_gets_a_4xx_and_a_closed_connection(tmp_path: Path, raw: bytes) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=replace(QUICK, head_s=0.5)) as kit:
        answer = await exchange(kit.port, raw)
        assert all(400 <= status < 500 for status in statuses(answer))
        assert len(statuses(answer)) == 1
        assert (await kit.post(TEXT)).status_code == 200
        assert len(engine.legs) == 1


async def test_random_bytes_never_hurt(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, head_s=0.3, body_idle_s=0.3, keep_alive_s=0.3)) as kit,
    ):
        good = post(BODY, CLOSE)

        async def one() -> bytes:
            raw = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            cut = chance.randrange(len(raw))
            return await exchange(kit.port, bytes(raw[:cut]), bytes(raw[cut:]))

        answers = await asyncio.gather(*(one() for _ in range(60)))
        assert {status // 100 for answer in answers for status in statuses(answer)} <= {2, 4}
        await until(kit.idle, "idle")
        assert (await kit.post(TEXT)).status_code == 200


@pytest.mark.parametrize("header", ["x: " + "y" * 40_000, "\r\n".join(f"h{n}: x" for n in range(200))], ids=["long", "many"])
async def test_headers_without_end_are_431(tmp_path: Path, header: str) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        assert statuses(await exchange(kit.port, post(BODY, header))) == [431]
        assert engine.legs == []


async def test_a_head_or_a_body_that_never_comes_is_408(tmp_path: Path) -> None:
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, head_s=0.2, body_idle_s=0.2)) as kit,
    ):
        late = await asyncio.gather(exchange(kit.port, b"POST /v1"), exchange(kit.port, post(BODY)[:-3]))
        assert [statuses(answer) for answer in late] == [[408], [408]]


async def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path) -> None:
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, keep_alive_s=0.2)) as kit,
    ):
        assert await exchange(kit.port, b"") == b""
        assert statuses(await exchange(kit.port, post(BODY))) == [200]


async def test_a_long_answer_outlives_the_clocks_of_requests(tmp_path: Path) -> None:
    limits = replace(QUICK, keep_alive_s=0.2, head_s=0.2, body_idle_s=0.2)
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=limits) as kit:
        engine.acts = [act.later(1.5)]
        answer = await exchange(kit.port, post(BODY) + b"GET /liv", b"ez HTTP/1.1\r\nhost: x\r\n\r\n", pause_s=1.0)
        assert statuses(answer) == [200, 200]


async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        body = json.dumps({**TEXT, "stream": True}).encode()
        raw = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        answer = await exchange(kit.port, raw)
        assert b"transfer-encoding" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")


async def test_an_offer_to_upgrade_is_passed_over(tmp_path: Path) -> None:
    """As the HTTP client of Java makes it, with a body."""
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        raw = post(BODY, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB")
        answer = await exchange(kit.port, raw + post(BODY, CLOSE))
        assert statuses(answer) == [200, 200]
        assert [leg.raw for leg in engine.legs] == [BODY, BODY]


async def test_a_slow_reader_holds_the_engine_back(tmp_path: Path) -> None:
    sent = 0

    async def flood(engine: FakeEngine, leg: Leg) -> None:
        nonlocal sent
        await act.begin_stream(leg)
        while sent < 64 * 1024 * 1024:
            await act.send_event(leg, act.event(leg.body, "x" * 30_000))
            sent += 30_000
        await act.send_event(leg, b"[DONE]")
        leg.writer.write(b"0\r\n\r\n")
        await leg.writer.drain()

    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [flood]
        reader, writer = await asyncio.open_connection("127.0.0.1", kit.port, limit=1024)
        writer.write(post(json.dumps({**TEXT, "stream": True}).encode(), CLOSE))
        await reader.read(100)
        before = -1
        while before != sent:  # until the engine cannot send any more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 * 1024 * 1024
        rest = await asyncio.wait_for(reader.read(), 60)
        assert sent >= 64 * 1024 * 1024
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()


async def test_a_client_that_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    async def endless(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        while True:
            await act.send_event(leg, act.event(leg.body, "x" * 30_000))

    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, client_stall_s=0.5)) as kit,
    ):
        engine.acts = [endless]
        _, writer = await asyncio.open_connection("127.0.0.1", kit.port, limit=1024)
        writer.write(post(json.dumps({**TEXT, "stream": True}).encode()))
        await until(lambda: engine.legs and engine.legs[0].cancelled, "cut off")
        await until(kit.idle, "idle")
        writer.transport.abort()


async def test_a_stop_lets_streams_finish_and_ends_the_rest_with_an_error(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=replace(QUICK, stop_s=5.0)) as kit:
        engine.step_s = 0.05
        short = asyncio.ensure_future(kit.post({**TEXT, "stream": True, "max_tokens": 10}))
        long = asyncio.ensure_future(kit.post({**TEXT, "stream": True, "max_tokens": 10_000}))
        await until(lambda: len(engine.legs) == 2)
        kit.stop.set()
        assert b"[DONE]" in (await short).content
        cut = (await long).content
        assert b'"code":"stopping"' in cut
        assert b"[DONE]" not in cut
        await asyncio.wait_for(kit.task, 60)
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", kit.port)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + trailer


@pytest.mark.parametrize(
    "begun", [chunked(b"{}", trailer=b"0\r\nx: "), chunked(b"{}", trailer=b"2;ext=")], ids=["trailer", "ext"]
)
async def test_what_is_no_body_may_not_grow_without_end(tmp_path: Path, begun: bytes) -> None:
    async with running(tmp_path) as kit:
        answer = await exchange(kit.port, begun, *[b"x" * 16_384] * 64)
        assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_body_in_tiny_chunks_is_read(tmp_path: Path) -> None:
    raw = json.dumps({**TEXT, "prompt": "x" * 30_000}).encode()
    pieces = [raw[at : at + 2] for at in range(0, len(raw), 2)]
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        sent = chunked(*pieces, trailer=b"0\r\na: b\r\n\r\n").replace(b"host: x", b"host: x\r\nconnection: close")
        answer = await exchange(kit.port, sent)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert engine.legs[0].body["prompt"] == "x" * 30_000


async def test_a_large_body_without_the_key_is_not_read_to_its_end(tmp_path: Path) -> None:
    key = KeyEntry(hashlib.sha256(b"secret").hexdigest(), "team")
    body = b" " * 1_000_000
    async with running(tmp_path, require_key=True, keys=(key,)) as kit:
        answer = await exchange(kit.port, post(body)[:200_000])
        assert answer.startswith(b"HTTP/1.1 401 ")
        admitted = await exchange(kit.port, post(body, "authorization: Bearer secret", "connection: close"))
        assert admitted.startswith(b"HTTP/1.1 400 ")


async def test_any_number_of_upgrades_is_ignored_one_after_another(tmp_path: Path) -> None:
    one = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    last = one.replace(b": upgrade\r", b": close, upgrade\r")
    async with running(tmp_path) as kit:
        answer = await exchange(kit.port, one * 1500 + last)
        assert answer.count(b"HTTP/1.1 200 OK") == 1501
        assert answer.count(b"connection: close") == 1


async def test_http_1_0_is_told_that_the_connection_closes(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        answer = await exchange(kit.port, b"GET /livez HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert b"connection: close" in answer


async def test_a_client_that_leaves_behind_a_full_pipeline_is_noticed(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.always = act.hang
        reader, writer = await asyncio.open_connection("127.0.0.1", kit.port)
        writer.write(post(json.dumps(TEXT).encode()) + post(b" " * 200_000))
        leg = (await until(lambda: engine.legs))[0]
        writer.close()
        await until(lambda: leg.cancelled, "cancelled")
        del reader

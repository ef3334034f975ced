"""Whatever bytes come, in whatever pieces and however slowly: an answer below 500 or a closed connection, never a crash, a
hang, or a mark left on others. Deterministic: the same examples every time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.router.limits import Limits
from tests.integration.router_kit import TEXT, Kit, model, running, until
from tests.integration.router_raw import exchange, post
from tests.integration.router_swarm import SwarmEngine

HANG_S = 60.0
LIMITS = replace(Limits(), body_bytes=20_000, pipelined=8)
QUICK = replace(LIMITS, head_s=0.2, body_idle_s=0.2, keep_alive_s=0.2, linger_s=0.2)
"""For clients that wait until they are cut off. They may hit good requests, too, when the machine is busy."""
FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
    max_examples=25,
)


@dataclass
class Target:
    kit: Kit
    runner: asyncio.Runner
    complaints: list[str]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)


class _Complaints(logging.Handler):
    """Errors are bugs: a callback or a task of the router that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Target]:
    """A router that splits requests, served by one loop that only runs while a test waits for it."""
    complaints = _Complaints()
    logging.getLogger().addHandler(complaints)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def begin() -> Kit:
            engines = [SwarmEngine("p1", step_s=0.0), SwarmEngine("d1", step_s=0.0)]
            for engine in engines:
                stack.callback((await engine.start()).close)
            route = model({"prefill": engines[:1], "decode": engines[1:]}, mode="disaggregated", connector="nixl")  # type: ignore[dict-item]  # they have an id and a url, too
            return await stack.enter_async_context(running(tmp_path_factory.mktemp("fuzz"), route, limits=request.param))

        kit = runner.run(begin())
        yield Target(kit, runner, complaints.texts)
        runner.run(stack.aclose())
    logging.getLogger().removeHandler(complaints)


# --- what is sent ---

GOOD = json.dumps(TEXT).encode()
STREAM = json.dumps({**TEXT, "stream": True}).encode()
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\nx: y\r\n\r\n" % (10, GOOD[:10], len(GOOD) - 10, GOOD[10:])
)
REQUESTS = [
    post(GOOD),
    post(STREAM),
    post(GOOD) + post(STREAM) + post(GOOD),
    post(GOOD, "expect: 100-continue"),
    post(GOOD, "connection: upgrade", "upgrade: h2c"),
    CHUNKED,
    CHUNKED + CHUNKED,
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
]
PIECES = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff" * 3, b" ", b":", b"content-length: 5\r\n", b"Content-Length: -1\r\n",
    b"content-length: 99999999999999999999\r\n", b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip\r\n",
    b"connection: close\r\n", b"upgrade: websocket\r\nconnection: upgrade\r\n", b"expect: 100-continue\r\n", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"x: " + b"y" * 40_000 + b"\r\n", b"a: b\r\n" * 150, b"HTTP/1.1", b"HTTP/2.0", b"{",
    b"[" * 3000, post(GOOD), b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 20, b" " * 30_000,
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good request in which some places were cut out, overwritten or added to."""
    raw = draw(st.sampled_from(REQUESTS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        until_ = min(len(raw), at + draw(st.sampled_from([0, 0, 1, 1, 4, 40])))
        raw = raw[:at] + draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4))) + raw[until_:]
    return raw


@dataclass(frozen=True)
class Talk:
    raw: bytes
    cuts: tuple[int, ...]
    slow: bool
    hangs_up: bool
    """It ends by closing its side; otherwise it waits until the router closes the connection."""


TALKS = st.builds(
    Talk,
    raw=st.one_of(st.binary(max_size=200), damaged(), damaged(), damaged()),
    cuts=st.lists(st.integers(0, 400), max_size=4).map(lambda cuts: tuple(sorted(cuts))),
    slow=st.booleans(),
    hangs_up=st.booleans(),
)
KEYS = ["prompt", "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "echo",
        "stop", "logprobs", "tools", "tool_choice", "kv_transfer_params", "temperature", "content", "role", "x"]  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-2, 20), st.floats(), st.text(max_size=6),
        st.sampled_from(["m", "user", "1e999", "true", {"include_usage": True}, {"type": "image_url"}, [1, 2, 3], 10**30]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])


# --- what must hold ---


async def held(kit: Kit, talk: Talk) -> bytes:
    """All that the router says until it closes the connection, or is at rest after the client has closed its side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", kit.port)
    bounds = [0, *(cut for cut in talk.cuts if cut < len(talk.raw)), len(talk.raw)]
    try:
        async with asyncio.timeout(HANG_S):
            for start, end in pairwise(bounds):
                writer.write(talk.raw[start:end])
                await writer.drain()
                await asyncio.sleep(0.02 if talk.slow else 0)
            if talk.hangs_up:
                writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""  # closed before all was sent
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


def statuses(answer: bytes) -> set[int]:
    return {int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n", answer)}


async def at_peace(kit: Kit) -> None:
    """Nothing is left open, and a good request is served (at last, if the router is a quick one)."""
    await until(kit.idle, "idle")
    async with asyncio.timeout(HANG_S):
        while not (await exchange(kit.port, post(GOOD, "connection: close"))).startswith(b"HTTP/1.1 200 "):
            pass


@pytest.mark.parametrize("target", [QUICK], ids=["quick"], indirect=True)
@FUZZ
@given(talks=st.lists(TALKS, min_size=6, max_size=12))
def test_no_bytes_hurt(target: Target, talks: list[Talk]) -> None:
    async def all_at_once() -> list[bytes]:
        answers = await asyncio.gather(*(held(target.kit, talk) for talk in talks))
        await at_peace(target.kit)
        return answers

    for answer in target.run(all_at_once()):
        assert all(status < 500 for status in statuses(answer)), answer
        assert answer == b"" or statuses(answer), answer
    assert not target.complaints


@pytest.mark.parametrize("target", [LIMITS], ids=["patient"], indirect=True)
@FUZZ
@given(talks=st.lists(st.tuples(PATHS, BODIES, st.booleans()), min_size=8, max_size=16))
def test_no_json_hurts(target: Target, talks: list[tuple[str, dict[str, Any], bool]]) -> None:
    """Bodies that are JSON objects of odd fields reach engines, which here take anything, or are refused."""

    async def all_at_once() -> list[int]:
        posts = (
            target.kit.post({"model": "m", **body} if named else body, path)
            for path, body, named in talks
            if _sendable(body)
        )
        answers = await asyncio.gather(*posts)
        await at_peace(target.kit)
        return [answer.status_code for answer in answers]

    assert all(status < 500 for status in target.run(all_at_once()))
    assert not target.complaints


def _sendable(body: dict[str, Any]) -> bool:
    """Whether UTF-8 can carry it: no lone surrogates."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True

"""What the router does quickly with nearly all requests and reads is what it would do looking closely."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Coroutine
from typing import Any

import httptools
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.router import courses, framing
from controlplane.router.client import ClientConnection
from controlplane.router.courses import Course, Pause
from controlplane.router.errors import ApiError
from controlplane.router.gathering import Gathering
from controlplane.router.heads import Heads
from controlplane.router.legs import Collector
from controlplane.router.limits import Limits
from controlplane.router.reading import ClientRequest, RequestParser
from controlplane.router.relay import Relay
from controlplane.router.upstream import EngineConnection

# --- heads ---

LINES = st.sampled_from([
    b"Host: a", b"host:a", b"Content-Type: application/json", b"accept: */*", b"Authorization: Bearer k", b"x-api-key: k",
    b"Content-Length: 2", b"content-length:  2\t", b"Content-Length: 02", b"Content-Length: +2", b"Content-Length: 3",
    b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue", b"X: \x01",
    b"X : y", b" folded", b"X:", b"X: y\nInjected: z", b"X: y\rz", b"\xffx: y", b"x: \xff", b"Upgrade: h2c",
    b"no colon", b": y",
    b"X-Request-Id: r", b"Proxy-Connection: close", b"te: trailers",
])  # fmt: skip


class Seen:
    """A Reader that keeps what it is given."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.refusals = 0

    def head_begins(self) -> None:
        pass

    def expects_continue(self) -> None:
        pass

    def admit(self, request: ClientRequest) -> None:
        pass

    def complete(self, request: ClientRequest) -> bool:
        told = (request.method, request.target, request.headers, request.keep_alive, request.http10)
        self.requests.append((*told, request.take_body()))
        return True

    def refused(self, error: ApiError) -> None:
        self.refusals += 1


def fed(pieces: list[bytes]) -> Seen:
    seen = Seen()
    parser = RequestParser(seen, Limits())
    for piece in pieces:
        if not seen.refusals:
            parser.feed(piece)
    return seen


@given(st.lists(LINES, max_size=7), st.sampled_from([b"{}", b"", b"{}x", b"{"]))
@settings(max_examples=200, deadline=None)
def test_a_request_read_quickly_is_what_a_parser_reads(lines: list[bytes], body: bytes) -> None:
    wire = b"\r\n".join([b"POST /v1/completions HTTP/1.1", *lines, b"", body])
    at_once, slowly = fed([wire]), fed([wire[:10], wire[10:]])
    if at_once.requests:
        assert at_once.requests == slowly.requests
    else:
        assert not slowly.requests
    assert bool(at_once.refusals) == bool(slowly.refusals)


def test_known_lines_are_looked_up_and_the_book_of_them_is_bounded() -> None:
    heads = Heads(frozenset({b"host"}))
    for number in range(5000):
        assert heads.read([b"Host: a", b"x-%d: y" % number, b"Date: %d" % number]) == {b"host": b"a"}
    assert len(heads._known) <= 1024
    assert heads.read([b"host: a", b"Host: b"]) is None


@given(st.lists(LINES, max_size=6), st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_an_answer_read_quickly_is_what_a_parser_reads(lines: list[bytes], body: bytes) -> None:
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""])
    try:
        parser = httptools.HttpResponseParser(object())
        parser.feed_data(head)
    except httptools.HttpParserError:
        return
    quick, close = Told(), Told()
    feed(quick, [head + body])
    feed(close, [head[:20], head[20:] + body])
    assert quick.told == close.told


class Told:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        names = (b"content-type", b"content-length", b"transfer-encoding", b"retry-after")
        self.told.append((status, {name: headers.get(name) for name in names}))

    def body(self, payload: bytes, as_it_came: bytes | None) -> None:
        self.told.append(payload)

    def end(self) -> None:
        self.told.append("end")

    def lost(self, fault: Any) -> None:
        self.told.append(fault.kind)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.written.append(b"aborted")

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def feed(sink: Any, pieces: list[bytes]) -> EngineConnection:
    connection = EngineConnection(lambda _: None, lambda _: None)
    connection.connection_made(Wire())  # type: ignore[arg-type]
    sink.connection = connection
    connection.start(b"", sink, 1.0, 1.0)
    for piece in pieces:
        if connection.busy:
            connection.data_received(piece)
    return connection


# --- streams ---


class Application:
    """As a client's connection sees one that is never asked for anything."""

    stopping = False

    def opened(self, client: ClientConnection) -> None:
        pass


class Engine:
    produced = 0


def relayed(pieces: list[bytes], strip_usage: bool) -> tuple[Relay, list[bytes]]:
    wire = Wire()
    client = ClientConnection(Application(), Limits())  # type: ignore[arg-type]
    client.connection_made(wire)  # type: ignore[arg-type]
    relay = Relay(
        client,
        lambda content_type, length: b"",
        Limits(),
        Engine(),
        Gathering(Limits()),
        strip_usage=strip_usage,
        prompt_details=None,
        expects_done=True,
        http10=False,
        keeps=True,
    )
    feed(relay, [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n", *pieces])
    return relay, wire.written


def event(document: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


EVENTS = st.lists(
    st.sampled_from([
        event({"choices": [{"text": " a"}], "usage": None}),
        event({"choices": [{"text": 'say "error"'}]}),
        event({"choices": [{"text": "\r\n0\r\n\r\n"}]}),
        event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}),
        b": comment\n\n",
        b"event: ping\ndata: {}\n\n",
    ]),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(EVENTS, st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_stream_arrives_the_same_however_it_is_cut(events: list[bytes], cuts: list[int], group: int, strip: bool) -> None:
    events = [*events, b"data: [DONE]\n\n"]
    chunks = [framing.chunk(b"".join(events[at : at + group])) for at in range(0, len(events), group)]
    wire = b"".join(chunks) + framing.LAST_CHUNK
    places = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    expected = [each for each in events if not (strip and b"prompt_tokens" in each)]
    for pieces in ([wire[a:b] for a, b in itertools.pairwise(places)], [*chunks, framing.LAST_CHUNK]):
        relay, written = relayed(pieces, strip)
        reader = framing.Chunked()
        assert reader.feed(b"".join(written)) == b"".join(expected)
        assert reader.ended
        assert relay.events == len(expected)
        assert relay.watch.usage == ({"prompt_tokens": 3, "completion_tokens": 5} if b"prompt_tokens" in wire else None)
        assert framing.Chunked().feed(b"".join(relay.kept or [])) == b"".join(expected)


@pytest.mark.parametrize("bad", [event({"error": {"message": "x"}}), event({"choices": [{"finish_reason": "abort"}]})])
def test_a_stream_that_fails_is_not_passed_on_quickly(bad: bytes) -> None:
    good = framing.chunk(event({"choices": [{"text": "a"}]}))
    for pieces in ([good, good, framing.chunk(bad)], [good, good + framing.chunk(bad)]):
        relay, written = relayed(pieces, False)
        assert b"".join(written) == good + good * (len(written) - 1)
        assert relay.watch.error


# --- courses ---


async def test_a_course_goes_on_in_the_call_that_ends_its_pause() -> None:
    pause, told = Pause[int](), []

    async def work() -> None:
        told.extend([await pause.wait(), await pause.wait()])

    course = Course(work(), asyncio.ensure_future)
    course.start()
    pause.settle(1)
    pause.settle(2)
    assert told == [1, 2]
    assert course.done()


async def test_a_course_that_waits_for_something_else_goes_on_as_a_task() -> None:
    pause, told = Pause[int](), []
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(work))
        return tasks[-1]

    async def work() -> None:
        told.append(await pause.wait())
        await courses.in_task()
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        told.append(await pause.wait())

    course = Course(work(), spawn)
    course.start()
    pause.settle(1)
    pause.settle(2)  # before anybody waits for it: it is kept
    await asyncio.gather(*tasks)
    assert told == [1, 2]
    assert course.done()


@pytest.mark.parametrize("waits_for", ["pause", "task that has not begun", "task"])
async def test_a_cancelled_course_is_told_wherever_it_waits(waits_for: str) -> None:
    told: list[str] = []
    leg = Collector(100)
    leg.connection = EngineConnection(lambda _: None, lambda _: None)

    async def work() -> None:
        try:
            if waits_for != "pause":
                await asyncio.sleep(3600)
            await leg.wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    course = Course(work(), asyncio.ensure_future)
    course.start()
    if waits_for == "task":
        await asyncio.sleep(0.01)
    course.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert course.done()
    assert told == ["cancelled"]
    assert (leg.connection is None) == (waits_for == "pause")  # a leg that is waited for is ended
    course.cancel()


# --- gathering ---


async def test_events_gather_only_while_there_are_many_streams() -> None:
    gathering = Gathering(Limits(gather_streams=3))
    for streams, begun in ((2, False), (3, True)):
        gathering.streams = streams
        gathering.begin()
        assert gathering.begun is begun
    await asyncio.sleep(0.01)
    assert not gathering.begun


async def test_what_is_no_event_of_a_stream_ends_a_pause() -> None:
    gathering = Gathering(Limits(gather_streams=1, gather_per_stream_s=600.0, gather_s=600.0))
    gathering.streams = 1
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for heeded in (gathering.heed, gathering.ignore, gathering.heed, gathering.heed):
            heeded(ours.fileno())
        theirs.send(b"x")
        gathering.begin()
        await asyncio.sleep(0.01)
        assert not gathering.begun
    gathering.ignore(ours.fileno())  # closed, and gone
    gathering.heed(-1)

"""/ws/live on a real web process, Valkey and PostgreSQL, as a browser would use it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket as tcp
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client
from redis.asyncio import Redis
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from controlplane.asgi import application
from controlplane.control import actor
from controlplane.control.actor import Actor
from controlplane.core import names
from controlplane.live import frames, socket
from controlplane.live import hub as hub_module
from controlplane.live.hub import Hub, hub
from controlplane.live.reader import Reader
from controlplane.stack.ports import free_port
from controlplane.stack.testing import StartedValkey
from controlplane.telemetry.publish import WRITE, Publisher

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0
VIEWER = Actor("viewer", "viewer")


class Web:
    """The web process of a stack of its own Valkey, so that it may be killed."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = ""
        self._folder = folder
        self.valkey = StartedValkey(folder / "valkey", free_port(), "secret-of-this-test")

    def start(self) -> None:
        self.start_valkey()
        environment = {names.ENV_VALKEY_URL: self.valkey.url, names.ENV_CONSOLE_ORIGINS: self.origin}
        command = [sys.executable, "-m", "controlplane.live.server", "--port", str(self.port)]
        with (self._folder / "web.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return (self._folder / "web.log").read_text()

    def start_valkey(self) -> None:
        with (self._folder / "valkey.log").open("ab") as log:
            self.valkey.start(log)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.valkey.stop()

    @asynccontextmanager
    async def socket(self, path: str = "/ws/live", **headers: str) -> AsyncIterator[ClientConnection]:
        """Connected once the server is up."""
        sent = {"Origin": self.origin, "Cookie": self.cookie} | headers
        url = f"ws://127.0.0.1:{self.port}{path}"
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                connection = await connect(url, additional_headers={k: v for k, v in sent.items() if v}, proxy=None)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[Redis]:
        async with Redis.from_url(self.valkey.url) as valkey:
            yield valkey


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[Web]:
    web = Web(tmp_path_factory.mktemp("web"))
    web.start()
    yield web
    web.stop()


@pytest.fixture
def web(server: Web, transactional_db: None) -> Web:
    client = Client()
    client.force_login(get_user_model().objects.create_user("viewer"), "django.contrib.auth.backends.ModelBackend")
    server.cookie = f"sessionid={client.cookies['sessionid'].value}"
    with redis.Redis.from_url(server.valkey.url) as valkey:
        valkey.flushall()
    return server


async def publish(web: Web, topics: dict[str, list[dict[str, Any]]]) -> None:
    """What ingest does every second, on the web process's Valkey."""
    async with web.publisher() as valkey:
        layer = RedisPubSubChannelLayer(hosts=[web.valkey.url])
        await Publisher(valkey, layer).publish(topics, time.time())
        await layer.flush()


async def write(valkey: Redis, topic: str, rows: list[dict[str, Any]]) -> int:
    """What ingest does before it announces."""
    args = [int(time.time() * 1000), f"{time.time():.3f}", json.dumps(rows), 0]
    seq, _ = await valkey.register_script(WRITE)(keys=[names.live_key(topic)], args=args)
    return int(seq)


async def say(connection: ClientConnection, *topics: str) -> None:
    await connection.send(json.dumps({"subscribe": topics}))


async def hear(connection: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), WITHIN_S))
    return frame


async def until(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def newest(hub: Hub, name: str) -> int:
    """The number of the frame that the hub has."""
    topic = hub.topic(name)
    return topic.frame.state.seq if topic and topic.frame else 0


async def close_code(connection: ClientConnection) -> int | None:
    try:
        while True:
            await asyncio.wait_for(connection.recv(), WITHIN_S)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


def rows(**values: int) -> list[dict[str, Any]]:
    return [{"id": id, "type": "x", "value": value} for id, value in values.items()]


@pytest.mark.parametrize("topic", ["fleet", "operation:12"])
async def test_old_state_and_frames_are_a_fresh_snapshot(web: Web, topic: str) -> None:
    steps = [rows(a=1, b=1), rows(a=1, b=2), rows(b=2, c=1), rows(b=2, c=1), rows(a=5)]
    async with web.publisher() as valkey, web.socket() as early, web.socket() as late:
        seq = await write(valkey, topic, steps[0])
        await say(early, topic)
        frame = await hear(early)
        assert (frame["topic"], frame["kind"], frame["seq"], frame["rows"]) == (topic, "snapshot", seq, steps[0])
        state = {row["id"]: row for row in frame["rows"]}
        for step in steps[1:]:
            await publish(web, {topic: step})
            seq += 1
            frame = await hear(early)
            assert (frame["kind"], frame["seq"]) == ("rows", seq)
            for row in frame["rows"]:
                state[row["id"]] = row
                if row["type"] == "gone":
                    del state[row["id"]]
            assert state == {row["id"]: row for row in step}
        await say(late, topic)
        fresh = await hear(late)
        assert (fresh["kind"], fresh["seq"]) == ("snapshot", seq)
        assert state == {row["id"]: row for row in fresh["rows"]}


async def test_a_topic_that_is_late_comes_without_an_announcement_and_asking_again_gives_a_snapshot(web: Web) -> None:
    async with web.publisher() as valkey, web.socket() as page:
        await write(valkey, "model:org/llama", rows(a=1))
        await say(page, "fleet", "model:org/llama")
        assert (await hear(page))["topic"] == "model:org/llama"
        await write(valkey, "fleet", rows(a=1))
        first = await hear(page)
        assert (first["topic"], first["kind"]) == ("fleet", "snapshot")
        await say(page, "model:org/llama")
        again = await hear(page)
        assert (again["topic"], again["kind"], again["rows"]) == ("model:org/llama", "snapshot", rows(a=1))


async def test_only_users_who_logged_in_get_rows(web: Web) -> None:
    async with web.socket(Cookie="sessionid=guessed") as stranger:
        assert await close_code(stranger) == 4401


@pytest.mark.parametrize("origin", ["http://evil.example", "", "null", "http://a:99999", "http://a:x", "http://[a"])
async def test_pages_of_other_origins_are_kept_out(web: Web, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with web.socket(Origin=origin):
            pass
    assert refused.value.response.status_code == 403


async def test_other_socket_addresses_are_refused(web: Web) -> None:
    with pytest.raises(InvalidStatus):
        async with web.socket("/ws/other"):
            pass


async def test_bad_messages_get_an_error_and_then_an_end(web: Web) -> None:
    async with web.publisher() as valkey, web.socket() as page:
        await write(valkey, "fleet", rows(a=1))
        await say(page, "model:nobody")
        assert await hear(page) == {
            "error": "unknown_topic",
            "message": "there is no such topic now",
            "topic": "model:nobody",
        }
        await say(page, "operation:../1")
        assert (await hear(page))["error"] == "unknown_topic"
        for text in ("{", "x" * 9000):
            await page.send(text)
            assert (await hear(page))["error"] == "bad_message"
        await say(page, "fleet")
        assert (await hear(page))["kind"] == "snapshot"
        await page.send(b"\x00binary")
        await page.send("[]")
        assert await close_code(page) == 4400


async def test_a_client_that_talks_too_much_is_closed(web: Web) -> None:
    async with web.socket() as page:
        for _ in range(socket.MESSAGES + 1):
            await say(page, "fleet")
        assert await close_code(page) == 4429


async def test_when_valkey_comes_back_frames_go_on(web: Web) -> None:
    async with web.socket() as page:
        async with web.publisher() as valkey:
            await write(valkey, "fleet", rows(a=1))
        await say(page, "fleet")
        assert (await hear(page))["kind"] == "snapshot"
        os.kill(web.valkey.pid, signal.SIGKILL)
        web.start_valkey()
        async with web.publisher() as valkey:
            await write(valkey, "fleet", rows(a=2))
            assert (await hear(page))["rows"] == rows(a=2)
            await valkey.delete(names.live_key("fleet"))
            await write(valkey, "fleet", rows(a=3))
            frame = await hear(page)
            assert (frame["kind"], frame["seq"], frame["rows"]) == ("snapshot", 1, rows(a=3))
    assert "Traceback" not in web.said


async def test_a_slow_reader_gets_the_newest_and_no_backlog(valkey_url: str, valkey: redis.Redis, session: Any) -> None:
    """In this process, with a client that reads when the test says so."""
    heard: list[dict[str, Any]] = []
    may_read = asyncio.Event()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(event: dict[str, Any]) -> None:
        heard.append(json.loads(event["text"]))
        await may_read.wait()

    own_hub = Hub()
    own_hub.start()
    client = asyncio.create_task(socket.Socket(own_hub, session.session_key, VIEWER, said.get, send).run())
    async with Redis.from_url(valkey_url) as writer:
        publisher = Publisher(writer)
        await publisher.publish({"fleet": rows(a=0)}, time.time())
        await said.put({"type": "websocket.receive", "text": '{"subscribe": ["fleet"]}'})
        await until(lambda: heard)
        for value in range(1, 6):
            await publisher.publish({"fleet": rows(a=value)}, time.time())
        await until(lambda: newest(own_hub, "fleet") == 6)
        may_read.set()
        await until(lambda: len(heard) == 2)
        await publisher.publish({"fleet": rows(a=6)}, time.time())
        await until(lambda: len(heard) == 3)
    assert [(frame["seq"], frame["kind"]) for frame in heard] == [(1, "snapshot"), (6, "snapshot"), (7, "rows")]
    await said.put({"type": "websocket.disconnect"})
    await client
    assert own_hub.topic("fleet") is None
    await own_hub.stop()


async def test_an_error_that_nobody_foresaw_freezes_no_page(
    valkey_url: str, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([RuntimeError("unforeseen"), RuntimeError("unforeseen")])

    def read(topic: str, raw: Any) -> Any:
        for failure in failures:
            raise failure
        return frames.read(topic, raw)

    monkeypatch.setattr(hub_module, "read", read)
    own_hub = Hub()
    own_hub.start()
    async with Redis.from_url(valkey_url) as writer:
        await write(writer, "fleet", rows(a=1))
        own_hub.follow(Reader(), ["fleet"])
        await until(lambda: newest(own_hub, "fleet") == 1)
    await own_hub.stop()
    assert [record.message for record in caplog.records] == ["live rows: an unforeseen error, going on"]


class Deaf:
    """A client that follows "fleet" over a bare connection and then reads nothing more."""

    def __init__(self, web: Web) -> None:
        self._reset = False
        self.own = tcp.socket()
        self.own.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4096)
        self.own.settimeout(WITHIN_S)
        self.own.connect(("127.0.0.1", web.port))
        lines = (
            "GET /ws/live HTTP/1.1", f"Host: 127.0.0.1:{web.port}", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", f"Origin: {web.origin}",
            f"Cookie: {web.cookie}", "", "",
        )  # fmt: skip
        self.own.sendall("\r\n".join(lines).encode())
        assert self.own.recv(12) == b"HTTP/1.1 101"
        text = b'{"subscribe": ["fleet"]}'
        self.own.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)

    @property
    def cut_off(self) -> bool:
        """Whether the other side has reset the connection. The system tells it once."""
        self._reset |= self.own.getsockopt(tcp.SOL_SOCKET, tcp.SO_ERROR) == errno.ECONNRESET
        return self._reset

    def close(self) -> None:
        self.own.close()


async def test_a_client_that_never_reads_is_cut_off_and_the_others_go_on(web: Web) -> None:
    """Frames are larger than the buffers, so that they fill at once."""
    web_process = psutil.Process(web.process.pid)
    async with web.publisher() as valkey, web.socket() as page:
        await publish(web, {"fleet": [{"id": "a", "type": "x", "value": "0" * 300_000}]})
        await say(page, "fleet")
        assert (await hear(page))["kind"] == "snapshot"
        deaf = [await asyncio.to_thread(Deaf, web) for _ in range(3)]
        held = len(web_process.net_connections())
        deadline, number = time.monotonic() + 2 * WITHIN_S, 0
        while not all(each.cut_off for each in deaf):
            assert time.monotonic() < deadline
            number += 1
            await write(valkey, "fleet", [{"id": "a", "type": "x", "value": str(number) * 300_000}])
            assert (await hear(page))["rows"]
        assert len(web_process.net_connections()) == held - len(deaf)
        for each in deaf:
            each.close()


async def test_a_socket_that_asks_for_nothing_is_closed(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "ASK_WITHIN_S", 0.01)
    sent: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    await socket.Socket(Hub(), session.session_key, VIEWER, said.get, send).run()
    assert [(event["type"], event["code"]) for event in sent] == [("websocket.close", 4409)]


async def test_a_topic_that_a_role_may_not_follow_is_refused_and_taken_away_when_the_role_is_lost(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "CHECK_LOGIN_EVERY_S", 0.01)
    monkeypatch.setitem(actor.TOPICS, "nodes", actor.Rule("operator"))
    user = await get_user_model().objects.aget()
    group = await Group.objects.acreate(name="operator")
    await user.groups.aadd(group)
    sent: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        sent.append(json.loads(event["text"]))

    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    own_hub = Hub()
    operator = socket.Socket(own_hub, session.session_key, Actor("viewer", "operator"), said.get, send)
    client = asyncio.create_task(operator.run())
    await said.put({"type": "websocket.receive", "text": '{"subscribe": ["fleet", "nodes"]}'})
    await until(lambda: own_hub.topic("nodes"))
    await group.adelete()
    await until(lambda: own_hub.topic("nodes") is None)
    assert own_hub.topic("fleet")
    await said.put({"type": "websocket.receive", "text": '{"subscribe": ["nodes"]}'})
    await until(lambda: len(sent) == 2)
    assert [(frame["error"], frame["topic"]) for frame in sent] == [("forbidden", "nodes")] * 2
    await said.put({"type": "websocket.disconnect"})
    await client
    await own_hub.stop()


@pytest.fixture
def session(transactional_db: None) -> Any:
    client = Client()
    client.force_login(get_user_model().objects.create_user("viewer"), "django.contrib.auth.backends.ModelBackend")
    return client.session


@asynccontextmanager
async def page_checked_often(session: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApplicationCommunicator]:
    """A socket of the whole application in this process, which looks after the log-in all the time."""
    monkeypatch.setattr(socket, "CHECK_LOGIN_EVERY_S", 0.01)
    headers = [
        (b"origin", settings.CSRF_TRUSTED_ORIGINS[0].encode()),
        (b"cookie", f"sessionid={session.session_key}".encode()),
    ]
    page = ApplicationCommunicator(
        application, {"type": "websocket", "path": "/ws/live", "query_string": b"", "headers": headers}
    )
    await page.send_input({"type": "websocket.connect"})
    assert (await page.receive_output(WITHIN_S))["type"] == "websocket.accept"
    yield page
    await page.send_input({"type": "websocket.disconnect"})
    await page.wait(WITHIN_S)
    await hub().stop()


@pytest.mark.parametrize("end", ["log_out", "deactivate"])
async def test_who_may_no_longer_log_in_loses_the_socket_and_nobody_else(
    valkey: redis.Redis, session: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    checks: list[Actor | None] = []
    check = socket.actor_of
    monkeypatch.setattr(socket, "actor_of", lambda key: checks.append(check(key)) or checks[-1])
    async with page_checked_often(session, monkeypatch) as page:
        await until(lambda: len(checks) > 2)
        assert all(checks)
        if end == "log_out":
            await sync_to_async(session.flush)()
        else:
            await get_user_model().objects.aupdate(is_active=False)
        closed = await page.receive_output(WITHIN_S)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4401)

"""Nodes join with tokens, and their users of the broker reach nothing of others: real Valkey, real agents."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery.exceptions import TimeoutError as NoAnswer
from django.utils import timezone

from controlplane.common.jointoken import JoinToken, with_user, without_user
from controlplane.control import actions, commands
from controlplane.control.admission import Admission
from controlplane.control.refused import Refused
from controlplane.core import joining, names
from controlplane.fleet import models
from tests.integration.control_kit import ANN, until

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]
TLS = Path(__file__).parents[1] / "data" / "tls"


@pytest.fixture
def admission(valkey: redis.Redis) -> Iterator[Admission]:
    yield Admission()
    if users := our_users(valkey):
        valkey.acl_deluser(*users)
    valkey.acl_log_reset()


def our_users(valkey: redis.Redis) -> set[str]:
    return {str(name) for name in valkey.acl_users() if str(name).startswith(joining.PREFIX)}


@contextmanager
def joining_agent(folder: Path, token: str) -> Iterator[subprocess.Popen[str]]:
    """`manage.py agent` on a machine of its own, as far as its folder goes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TWINPOOL_")}
    env |= {names.ENV_JOIN_TOKEN: token}
    command = [sys.executable, "manage.py", "agent", "--state", str(folder), "--accelerators", "sim:1xh100-sxm"]
    command += ["--address", "127.0.0.1", "--metrics-port", "0"]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def new_token(valkey_url: str, node: str, **more: Any) -> JoinToken:
    _, row, secret = actions.add_join_token(ANN, node, **more)
    return JoinToken(row.pk, node, secret.hex(), without_user(valkey_url))


def passing(admission: Admission, check: Callable[[], Any]) -> Callable[[], Any]:
    """The check, after control's next pass."""

    def passed() -> Any:
        admission.run()
        return check()

    return passed


def tells(valkey: redis.Redis, node: str) -> Any:
    return valkey.get(names.fact_key("agent", node))


def said(folder: Path) -> str:
    return (folder.parent / f"{folder.name}.log").read_text()


def as_node(folder: Path) -> redis.Redis:
    """The broker as the node that joined with this folder sees it."""
    return redis.Redis.from_url(json.loads((folder / "secrets" / "join.json").read_text())["valkey_url"])


def test_a_node_joins_once_obeys_and_is_shut_out_when_it_is_removed(
    admission: Admission, valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    token = new_token(valkey_url, "a")
    assert valkey_url.rpartition("@")[0].rpartition(":")[2] not in str(token.text())
    with joining_agent(tmp_path / "a", token.text()) as process:
        until("heard", passing(admission, lambda: tells(valkey, "a")))
        row = models.JoinToken.objects.get()
        assert row.used_at is not None and token.secret not in str(models.JoinToken.objects.values())
        entry = models.AuditEntry.objects.get(verb="join")
        assert (entry.actor, entry.subject) == ("node:a", "node:a") and token.secret not in str(entry.after)
        answered = until("taking commands", lambda: denied(valkey) or answer_of("a"))
        assert "there is no engine" in answered.get("error", ""), answered
        assert not valkey.exists("unacked", "unacked_index")
        assert until("telemetry", lambda: valkey.xlen(names.TELEMETRY_STREAM))

        valkey.acl_deluser(joining.node_user("a"))  # as a broker that was started again has forgotten it
        valkey.delete(names.fact_key("agent", "a"))
        admission = Admission()
        until("heard again", passing(admission, lambda: tells(valkey, "a")))
        answered = until("taking commands again", lambda: answer_of("a"))
        assert "there is no engine" in answered["error"]

        process.kill()
        process.wait()
    with joining_agent(tmp_path / "a", token.text()):  # as a service manager starts it again, the token still there
        valkey.delete(names.fact_key("agent", "a"))
        until("heard", lambda: tells(valkey, "a"))
        assert "has joined with the token of" in said(tmp_path / "a")

        with joining_agent(tmp_path / "thief", token.text()) as thief:
            until("refused", passing(admission, lambda: thief.poll() is not None))
        assert "the token was used by another machine" in said(tmp_path / "thief")
        assert not (tmp_path / "thief" / "secrets" / "join.json").exists()

        assert denied(valkey) == {}
        models.Node.objects.filter(name="a").update(lost=True)
        actions.remove_node(ANN, "a")
        admission.run()
        assert our_users(valkey) == set()
        with pytest.raises(redis.AuthenticationError), as_node(tmp_path / "a") as client:
            client.ping()
        valkey.delete(names.fact_key("agent", "a"))
        until("cut off", lambda: "Valkey refuses the password" in said(tmp_path / "a"))
        assert not tells(valkey, "a")


def denied(valkey: redis.Redis) -> dict[str, Any]:
    """What the broker has refused to somebody who had signed in."""
    return {each["object"]: each["username"] for each in valkey.acl_log() if each["reason"] != "auth"}


def answer_of(node: str) -> Any:
    try:
        return commands.tail_log(node, "none", timeout_s=2)
    except NoAnswer:
        return None


def test_a_nodes_user_reaches_its_own_queue_and_nothing_of_others(
    admission: Admission, valkey: redis.Redis, valkey_url: str
) -> None:
    for node in ("a", "ab"):
        models.Node.objects.create(name=node, broker_sha256=joining.digest(node))
    admission.run()
    client = redis.Redis.from_url(with_user(valkey_url, joining.node_user("a"), "a"))
    others: list[tuple[str, ...]] = [
        ("BRPOP", "node.ab", "0"),
        ("LPUSH", "node.ab", "x"),
        ("BRPOP", "control", "0"),
        ("LPUSH", "control", "x"),
        ("HGET", "unacked", "x"),
        ("HGET", "node.ab.unacked", "x"),
        ("SADD", "_kombu.binding.node.ab", "x"),
        ("SMEMBERS", "_kombu.binding.control"),
        ("GET", "celery-task-meta-node.ab.1"),
        ("SETEX", "celery-task-meta-node.ab.1", "60", "x"),
        ("GET", "celery-task-meta-1"),
        ("GET", names.fact_key("agent", "ab")),
        ("SET", names.fact_key("agent", "ab"), "x"),
        ("SET", names.fact_key("router", "r"), "x"),
        ("GET", names.TABLE_KEY),
        ("SET", names.TABLE_KEY, "x"),
        ("GET", names.live_key("fleet")),
        ("PUBLISH", names.TABLE_CHANNEL, "x"),
        ("PUBLISH", names.LOADS_CHANNEL, "x"),
        ("SUBSCRIBE", names.FACT_CHANNEL),
        ("XRANGE", names.TELEMETRY_STREAM, "-", "+"),
        ("XTRIM", names.TELEMETRY_STREAM, "MAXLEN", "0"),
        ("DEL", names.TELEMETRY_STREAM),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("RANDOMKEY",),
        ("FLUSHALL",),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("ACL", "SETUSER", "twinpool.node.a", "~*"),
        ("CLIENT", "LIST"),
        ("MONITOR",),
        ("EVAL", "return redis.call('GET', 'table')", "0"),
    ]
    with client:
        for words in others:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
        assert client.lpush("node.a", "x") == 1
        assert client.set(names.fact_key("agent", "a"), "x")
        assert client.publish(names.FACT_CHANNEL, "agent:a") == 0
        assert client.xadd(names.TELEMETRY_STREAM, {"r": "x"})
        script = client.script_load("return redis.call('GET', KEYS[1])")
        with pytest.raises(redis.ResponseError, match="permission"):
            client.evalsha(script, 1, names.TABLE_KEY)


def test_a_token_that_is_revoked_or_over_or_replaced_lets_nobody_in(
    admission: Admission, valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    first = new_token(valkey_url, "a")
    second = new_token(valkey_url, "a", hours=1)
    over = new_token(valkey_url, "b")
    models.JoinToken.objects.filter(pk=over.id).update(expires_at=timezone.now())
    admission.run()
    assert our_users(valkey) == {joining.join_user(second.id)}, "a new token of a node takes the place of the one before"
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(join_url_of(first)) as client:
        client.ping()
    with redis.Redis.from_url(join_url_of(second)) as client:
        assert client.get(joining.answer_key(second.id)) is None
        for words in (
            ("GET", joining.answer_key(over.id)),
            ("GET", names.TABLE_KEY),
            ("LPUSH", "node.a", "x"),
            ("KEYS", "*"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
        client.set(joining.question_key(second.id), "{}")  # nobody is let in for that, and the next question is answered
        admission.run()
        assert valkey.keys("join:*") == [] and models.JoinToken.objects.filter(used_at=None).count() == 3

    actions.revoke_join_token(ANN, second.id)
    admission.run()
    assert our_users(valkey) == set()
    with pytest.raises(Refused, match="revoked already"):
        actions.revoke_join_token(ANN, second.id)
    with pytest.raises(Refused, match="expired already"):
        actions.revoke_join_token(ANN, over.id)
    with pytest.raises(Refused, match="there is no join token 999"):
        actions.revoke_join_token(ANN, 999)


def join_url_of(token: JoinToken) -> str:
    password = joining.join_password(bytes.fromhex(token.secret))
    return with_user(token.valkey_url, joining.join_user(token.id), password)


def test_an_agent_that_was_killed_before_its_answer_came_gets_it_again(
    admission: Admission, valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    token = new_token(valkey_url, "a")
    admission.run()
    question = joining.question_key(token.id)
    with joining_agent(tmp_path / "a", token.text()):
        until("asked", lambda: valkey.exists(question))
    admission.run()
    valkey.delete(joining.answer_key(token.id))  # it has run out meanwhile
    with joining_agent(tmp_path / "a", token.text()):
        until("heard", passing(admission, lambda: tells(valkey, "a")))
    assert models.AuditEntry.objects.filter(verb="join").count() == 1


@contextmanager
def tls_before(valkey_url: str) -> Iterator[int]:
    """A port at which the same Valkey speaks TLS (this build of it has none): what is in between ends TLS, nothing else."""
    there = urlsplit(valkey_url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(pass_on(reader, outer), pass_on(inner, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def end() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_node_joins_and_obeys_over_tls_and_only_where_the_certificate_is_right(
    admission: Admission, valkey: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    with tls_before(valkey_url) as port:
        token = new_token(f"rediss://localhost:{port}/0?ssl_ca_certs={TLS / 'ca.pem'}", "a")
        with joining_agent(tmp_path / "a", token.text()):
            until("heard", passing(admission, lambda: tells(valkey, "a")))
            answered = until("taking commands", lambda: answer_of("a"))
            assert "there is no engine" in answered["error"]
        untrusted = new_token(f"rediss://localhost:{port}/0", "b")
        with joining_agent(tmp_path / "b", untrusted.text()):
            until("refused", passing(admission, lambda: "CERTIFICATE_VERIFY_FAILED" in said(tmp_path / "b")))
        assert models.JoinToken.objects.get(pk=untrusted.id).used_at is None

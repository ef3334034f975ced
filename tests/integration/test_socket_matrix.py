"""Every kind of visitor on a real live socket: who may follow a topic gets its rows, the others are refused alike whether it
is there or not, and a right that is taken away ends or narrows the socket that used it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from controlplane.access import accounts, sessions
from controlplane.access.tokens import add_token
from controlplane.control import actions
from controlplane.control.actor import TOPICS
from controlplane.core import names
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from controlplane.telemetry.publish import WRITE
from tests.console_web import Web
from tests.integration.access_kit import quick_passwords
from tests.integration.control_kit import ANN
from tests.integration.control_rows import fleet
from tests.integration.test_permission_matrix import VISITORS, Visitor

__all__ = ["quick_passwords"]  # a fixture
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_passwords")]
WITHIN_S = 120.0
NARROW = "nodes"
"""What in this process operators alone may follow, so that there is a topic that not everybody may."""
PROGRAM = f"""
import controlplane.asgi
from controlplane.control import actor
from controlplane.live import server, socket
socket.CHECK_LOGIN_EVERY_S = 0.2
actor.TOPICS = {{**actor.TOPICS, {NARROW!r}: actor.Rule("operator")}}
server.main()
"""
THERE = ("fleet", "nodes", "alerts", "proposals", "model:m", "model:x", "operation:1")
ABSENT = ("model:none", "operation:999")
NEVER = (
    "keys",
    "tokens",
    "audit",
    "users",
    "log:m-1",
    "engine:m-1",
    "model:",
    "operation:0",
    "state",
    "*",
    "model:\x00",
    "",
)


def socket(web: Web, cookie: str = "", **headers: str) -> connect:
    sent = {"Origin": web.url, **({"Cookie": f"sessionid={cookie}"} if cookie else {}), **headers}
    return connect(f"{web.url.replace('http', 'ws')}/ws/live", additional_headers=sent, proxy=None)


@pytest.fixture(scope="module")
def server(valkey_url: str, django_db_setup: None) -> Iterator[Web]:
    web = Web(free_port(), {names.ENV_VALKEY_URL: valkey_url}, ("-c", PROGRAM))
    web.start()
    yield web
    web.stop()


@pytest.fixture
def web(server: Web, valkey: redis.Redis) -> Web:
    """With everybody of VISITORS, two models of two teams, and a state of every topic."""
    for team in ("search", "ads"):
        models.Team.objects.create(name=team)
    for name, team in (("m", "search"), ("x", "ads")):
        row = fleet("disaggregated", name, prefill=1, decode=1)
        models.Model.objects.filter(pk=row.pk).update(team=team)
    for each in VISITORS[1:]:
        user = User.objects.create_user(each.name, password="x" * 20)
        user.groups.add(Group.objects.get_or_create(name=each.group)[0])
        user.teams.set(models.Team.objects.filter(name__in=each.teams))
        for name in each.granted:
            actions.grant_model(ANN, name, each.name)
    for topic in THERE:
        rows = json.dumps([{"id": topic, "type": "x"}])
        valkey.register_script(WRITE)(keys=[names.live_key(topic)], args=[int(time.time() * 1000), "1.0", rows, 0])
    return server


def cookie_of(name: str) -> str:
    client = Client()
    client.force_login(User.objects.get(username=name), "django.contrib.auth.backends.ModelBackend")
    return client.cookies["sessionid"].value


async def ask(connection: ClientConnection, *topics: str) -> dict[str, str]:
    """By topic: `rows`, or the error."""
    await connection.send(json.dumps({"subscribe": topics}))
    told: dict[str, str] = {}
    while told.keys() < set(topics):
        frame = json.loads(await asyncio.wait_for(connection.recv(), WITHIN_S))
        told[frame.get("topic", "")] = f"{frame['error']}: {frame['message']}" if "error" in frame else "rows"
        if "rows" in frame:
            assert [row["id"] for row in frame["rows"]] == [frame["topic"]], "of this topic and no other"
    return told


async def end_of(connection: ClientConnection) -> tuple[int, str]:
    try:
        while True:
            await asyncio.wait_for(connection.recv(), WITHIN_S)
    except ConnectionClosed as closed:
        assert closed.rcvd
        return closed.rcvd.code, closed.rcvd.reason


def follows(visitor: Visitor, topic: str) -> bool:
    return topic != NARROW or visitor.group in ("operator", "admin")


def test_the_table_of_topics_is_tried_whole() -> None:
    assert {topic.partition(":")[0] for topic in THERE} == set(TOPICS)


@pytest.mark.parametrize("visitor", VISITORS[1:], ids=lambda each: each.name)
async def test_topics_answer_whom_the_table_lets_follow_and_refuse_others_alike(web: Web, visitor: Visitor) -> None:
    cookie = await sync_to_async(cookie_of)(visitor.name)
    async with socket(web, cookie) as page:
        told = await ask(page, *THERE, *ABSENT)
        assert {topic for topic in THERE if told[topic] == "rows"} == {topic for topic in THERE if follows(visitor, topic)}
        assert {told[topic] for topic in ABSENT} == {"unknown_topic: there is no such topic now"}
        refused = {told[topic] for topic in THERE if not follows(visitor, topic)}
        assert refused <= {"forbidden: your role may not follow this topic"}
    answers = set()
    for at in range(0, len(NEVER), 4):
        async with socket(web, cookie) as page:
            for topic in NEVER[at : at + 4]:
                await page.send(json.dumps({"subscribe": [topic]}))
                frame = json.loads(await asyncio.wait_for(page.recv(), WITHIN_S))
                answers.add((frame["error"], frame["message"]))
    assert len(answers) == 1 and answers.pop()[0] == "unknown_topic"


def _strangers() -> dict[str, dict[str, str]]:
    """Who is nobody: by name, what they send."""
    client = Client()
    client.get("/login")
    vic = User.objects.create_user("off")
    cookie = cookie_of("off")
    User.objects.filter(pk=vic.pk).update(is_active=False)
    tokens = {scopes: add_token(ANN, "ann", scopes, days=1, scopes=[scopes])[1] for scopes in ("read", "secrets")}
    return {
        "nothing": {},
        "no session": {"Cookie": "sessionid=guessed"},
        "a visitor's session": {"Cookie": f"sessionid={client.session.session_key}"},
        "switched off": {"Cookie": f"sessionid={cookie}"},
        **{f"token {scope}": {"Authorization": f"Bearer {token}"} for scope, token in tokens.items()},
        "token as cookie": {"Cookie": f"sessionid={tokens['read']}"},
        "two cookies": {"Cookie": "sessionid=a; sessionid=b"},
    }


async def test_strangers_and_tokens_are_all_turned_away_alike_before_anything_is_said(web: Web) -> None:
    ends = {}
    for name, headers in (await sync_to_async(_strangers)()).items():
        async with socket(web, **headers) as page:
            ends[name] = await end_of(page)
    assert set(ends.values()) == {(4401, "log in first")}, ends


def out(user: User) -> None:
    sessions.end_all(user)


def other_password(user: User) -> None:
    accounts.reset_password(ANN, user.username, password="another long password 7")


ENDS: dict[str, Callable[[User], Any]] = {
    "signed out": out,
    "switched off": lambda user: accounts.set_account(ANN, user.username, active=False),
    "another password": other_password,
    "gone": lambda user: user.delete(),
    "too old": lambda user: _age(user),
}


def _age(user: User) -> None:
    for row in sessions.Session.objects.all():
        if row.get_decoded().get("_auth_user_id") == str(user.pk):
            row.expire_date = timezone.now()
            row.save()


@pytest.mark.parametrize("end", ENDS)
async def test_who_is_nobody_any_more_loses_the_socket(web: Web, end: str) -> None:
    olga = await sync_to_async(User.objects.get)(username="olga")
    async with (
        socket(web, await sync_to_async(cookie_of)("olga")) as page,
        socket(web, await sync_to_async(cookie_of)("ann")) as other,
    ):
        assert (await ask(page, "fleet", NARROW))[NARROW] == "rows"
        await ask(other, "fleet")
        await sync_to_async(ENDS[end])(olga)
        assert await end_of(page) == (4401, "log in again")
        assert (await ask(other, "alerts"))["alerts"] == "rows", "and nobody else"


async def test_a_lost_role_narrows_the_socket_and_the_rest_goes_on(web: Web) -> None:
    async with socket(web, await sync_to_async(cookie_of)("olga")) as page:
        assert set((await ask(page, "fleet", NARROW)).values()) == {"rows"}
        await sync_to_async(accounts.set_account)(ANN, "olga", role="viewer")
        frame = json.loads(await asyncio.wait_for(page.recv(), WITHIN_S))
        assert (frame["error"], frame["topic"]) == ("forbidden", NARROW)
        again = await ask(page, "fleet", NARROW)
        assert again["fleet"] == "rows" and again[NARROW].startswith("forbidden")

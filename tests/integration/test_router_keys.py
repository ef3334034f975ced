"""API keys: models, requests and tokens a minute per team, priority, cache salts, and who needs a key."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.core.protocol import KeyEntry
from controlplane.router import identity
from controlplane.router.app import Router
from controlplane.router.client import ClientConnection
from controlplane.router.limits import Limits
from controlplane.router.telemetry import NoTelemetry
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine
from tests.integration.router_kit import (
    CHAT,
    TEXT,
    Kit,
    fakes,
    pair,
    running,
    split_model,
    until,
    whole_model,
    write_table,
)  # fmt: skip
from tests.integration.test_router_records import rows_of


def key(secret: str, team: str = "a", **fields: Any) -> KeyEntry:
    return KeyEntry(hashlib.sha256(secret.encode()).hexdigest(), team, **fields)


@asynccontextmanager
async def guarded(folder: Path, *keys: KeyEntry, **fields: Any) -> AsyncIterator[tuple[Kit, FakeEngine]]:
    async with fakes("e1") as (engine,):
        route = whole_model(engine, aliases=("alias",), **fields)
        async with running(folder, route, require_key=True, keys=keys) as kit:
            yield kit, engine


async def ask(kit: Kit, secret: str, body: dict[str, Any] = TEXT, path: str = "/v1/completions") -> httpx.Response:
    return await kit.post(body, path, authorization=f"Bearer {secret}")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_a_team_that_has_used_up_its_requests_is_told_when_to_come_again(tmp_path: Path) -> None:
    keys = (key("one", requests_per_minute=2), key("two", requests_per_minute=2), key("other", "b", requests_per_minute=2))
    async with guarded(tmp_path, *keys) as (kit, engine):
        first = await ask(kit, "one")
        assert first.status_code == 200
        assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
        assert "x-ratelimit-limit-tokens" not in first.headers
        assert (await ask(kit, "two")).status_code == 200
        refused = await ask(kit, "two")
        assert refused.status_code == 429
        assert error_of(refused)["type"] == "requests"
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "reason=rate_limited" in refused.headers["x-twinpool-route"]
        assert (await ask(kit, "other")).status_code == 200
        assert len(engine.generations()) == 3
        assert kit.idle()


async def test_the_record_of_a_request_names_its_key_and_the_team_of_that(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("one"), key("other", "b")) as (kit, _engine):
        rows = rows_of(kit)
        assert [(await ask(kit, secret)).status_code for secret in ("one", "other", "none")] == [200, 200, 401]
        assert [row.team for row in rows] == ["a", "b"]
        assert [row.api_key for row in rows] == [hashlib.sha256(name).hexdigest()[:16] for name in (b"one", b"other")]


async def test_tokens_are_what_the_engine_counted_prompt_and_answer(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", tokens_per_minute=1000)) as (kit, engine):
        body = {**TEXT, "prompt": "x" * 2000, "max_tokens": 50}
        first = await ask(kit, "k", body)
        estimated = 1000 - int(first.headers["x-ratelimit-remaining-tokens"])
        assert 400 < estimated < 600
        used = first.json()["usage"]["total_tokens"]
        second = await ask(kit, "k", {**TEXT, "prompt": "hi"})
        assert int(second.headers["x-ratelimit-remaining-tokens"]) == 1000 - used - 1
        third = await ask(kit, "k", {**body, "stream": True})
        assert third.status_code == 429
        assert error_of(third)["type"] == "tokens"
        assert int(third.headers["retry-after"]) >= 1
        assert len(engine.generations()) == 2


async def test_a_streams_tokens_count_although_its_client_did_not_ask_for_usage(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", tokens_per_minute=10_000)) as (kit, engine):
        body = {**TEXT, "stream": True, "max_tokens": 30}
        streamed = await ask(kit, "k", body)
        assert b"usage" not in streamed.content or b'"usage":null' in streamed.content
        assert engine.generations()[0].body["stream_options"] == {"include_usage": True}
        counted = act.usage_of(engine.generations()[0].body, 30)["total_tokens"]
        await until(kit.idle)
        after = await ask(kit, "k", {**TEXT, "prompt": "hi"})
        assert int(after.headers["x-ratelimit-remaining-tokens"]) == 10_000 - counted - 1


async def test_what_no_engine_served_costs_no_tokens(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", tokens_per_minute=1000)) as (kit, engine):
        engine.acts = [act.answer(400), act.answer(500), act.answer(500)]
        body = {**TEXT, "prompt": "x" * 1000}
        assert (await ask(kit, "k", body)).status_code == 400
        assert (await ask(kit, "k", body)).status_code == 502
        after = await ask(kit, "k", {**TEXT, "prompt": "hi"})
        assert after.headers["x-ratelimit-remaining-tokens"] == "999"


async def test_a_request_over_the_limit_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", tokens_per_minute=100)) as (kit, _):
        refused = await ask(kit, "k", {**TEXT, "prompt": "x" * 4000})
        assert refused.status_code == 429
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers


async def test_usage_stays_when_a_new_table_comes_and_changed_limits_count_at_once(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", requests_per_minute=2)) as (kit, engine):
        assert (await ask(kit, "k")).status_code == 200
        for limit, status in ((1, 429), (2, 200), (2, 429), (None, 200)):
            kit.generation += 1
            keys = (key("k", requests_per_minute=limit, tokens_per_minute=10**6),)
            write_table(kit.table, [whole_model(engine)], kit.generation, require_key=True, keys=keys)
            await until(lambda: kit.router.directory.table and kit.router.directory.table.generation == kit.generation)
            assert (await ask(kit, "k")).status_code == status


@pytest.mark.parametrize(
    ("priority", "status"), [(0, 200), (7, 200), (-2, 200), (None, 200), (-3, 403), ("-9", 400), (True, 400), (-1.0, 400)]
)
async def test_priority_only_within_the_keys_ceiling(tmp_path: Path, priority: Any, status: int) -> None:
    async with guarded(tmp_path, key("k", max_priority=2)) as (kit, engine):
        response = await ask(kit, "k", {**TEXT, "priority": priority})
        assert response.status_code == status, response.text
        assert len(engine.generations()) == (status == 200)
        if status == 200:
            assert engine.generations()[0].body["priority"] == priority
        else:
            assert error_of(response)["param"] == "priority"


async def test_each_team_has_prefixes_of_its_own_whatever_salt_it_sends(tmp_path: Path) -> None:
    salts = [None, "s", '["a"]']
    async with guarded(tmp_path, key("a1", "a"), key("a2", "a"), key("b", "b")) as (kit, engine):
        for secret in ("a1", "b", "a2"):
            for salt in salts:
                body = TEXT if salt is None else {**TEXT, "cache_salt": salt}
                assert (await ask(kit, secret, body)).status_code == 200
        sent = [leg.body["cache_salt"] for leg in engine.generations()]
        assert sent[:3] == sent[6:]
        assert len(set(sent[:6])) == 6
        assert all(json.loads(leg.raw)["prompt"] == TEXT["prompt"] for leg in engine.generations())
        assert (await ask(kit, "b", {**TEXT, "cache_salt": 5})).status_code == 400


async def test_both_legs_of_a_split_have_the_teams_salt(tmp_path: Path) -> None:
    async with pair(tmp_path, decodes=1, prefills=1) as two:
        write_table(two.kit.table, [split_model([two.p1], [two.d1])], 2, require_key=True, keys=(key("k"),))
        await until(lambda: two.kit.router.directory.table and two.kit.router.directory.table.generation == 2)
        assert (await ask(two.kit, "k", CHAT, "/v1/chat/completions")).status_code == 200
        assert [leg.body["cache_salt"] for leg in (*two.p1.generations(), *two.d1.generations())] == ['["a"]', '["a"]']


@pytest.mark.parametrize(
    ("team", "salt"), [("a/b", None), ("a", "x" * 120), ("a", 'say "hi"'), ("a", "line\nline"), ("a@b", "x")]
)
async def test_a_teams_salt_is_one_that_engines_take(tmp_path: Path, team: str, salt: str | None) -> None:
    async with guarded(tmp_path, key("k", team), key("other", "c")) as (kit, engine):
        body = {**TEXT, "cache_salt": salt} if salt else TEXT
        for secret in ("k", "k", "other"):
            assert (await ask(kit, secret, body)).status_code == 200
        mine, again, others = [leg.body["cache_salt"] for leg in engine.generations()]
        assert mine == again != others
        assert all(len(each) <= 128 and not set("@/\\\0") & set(each) for each in (mine, others))


async def test_a_model_that_shares_prefixes_gets_the_clients_salt(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k"), share_prefixes=True) as (kit, engine):
        await ask(kit, "k", {**TEXT, "cache_salt": "mine"})
        await ask(kit, "k")
        assert [leg.body.get("cache_salt") for leg in engine.generations()] == ["mine", None]


async def test_a_key_may_name_a_model_by_an_alias(tmp_path: Path) -> None:
    async with guarded(tmp_path, key("k", models=("alias",)), key("none", models=("x",))) as (kit, _):
        assert (await ask(kit, "k")).status_code == 200
        assert (await ask(kit, "none")).status_code == 403
        listed = await kit.client.get(kit.url + "/v1/models", headers={"authorization": "Bearer k"})
        assert [row["id"] for row in listed.json()["data"]] == ["m", "alias"]


async def test_a_key_may_name_an_adapter_or_its_model(tmp_path: Path) -> None:
    keys = (key("base", models=("m",)), key("one", models=("tuned",)), key("alias", models=("alias",)))
    async with guarded(tmp_path, *keys, adapters=("tuned", "other")) as (kit, engine):
        for secret, allowed in (("base", "m alias tuned other"), ("one", "tuned"), ("alias", "m alias tuned other")):
            listed = await kit.client.get(kit.url + "/v1/models", headers={"authorization": f"Bearer {secret}"})
            assert [row["id"] for row in listed.json()["data"]] == allowed.split()
            for name in ("m", "alias", "tuned", "other"):
                answer = await ask(kit, secret, {**TEXT, "model": name})
                assert answer.status_code == (200 if name in allowed.split() else 403)
        assert {leg.body["model"] for leg in engine.generations()} == {"m", "tuned", "other"}


class Wire(asyncio.Transport):
    """A client's connection from `peer` to `own`, two addresses."""

    def __init__(self, peer: str, own: str) -> None:
        super().__init__({"peername": (peer, 1), "sockname": (own, 2)})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def answered(self) -> bool:
        return bool(self.written)


async def test_without_require_key_only_this_machine_is_served(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), keys=(key("k"),)) as kit:
        assert (await kit.post(TEXT)).status_code == 200
        body = json.dumps(TEXT).encode()
        length = f"content-length: {len(body)}\r\n"
        for start, extra, content, answer in (
            ("POST /v1/completions", length, body, b"HTTP/1.1 401 "),
            ("GET /v1/models", "", b"", b"HTTP/1.1 401 "),
            ("GET /livez", "", b"", b"HTTP/1.1 200 "),
            ("POST /v1/completions", f"authorization: Bearer k\r\n{length}", body, b"HTTP/1.1 200 "),
        ):
            wire = Wire("10.0.0.6", "10.0.0.5")
            client = ClientConnection(kit.router, Limits())
            client.connection_made(wire)
            client.data_received(f"{start} HTTP/1.1\r\nhost: x\r\n{extra}\r\n".encode() + content)
            await until(wire.answered)
            assert wire.written.startswith(answer)
            assert (b"its own machine only" in wire.written) == (answer == b"HTTP/1.1 401 ")
            client.connection_lost(None)


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False),
     ("10.0.0.1", False), ("fe80::1%eth0", False), ("2001:db8::1", False)],
)  # fmt: skip
def test_which_addresses_are_this_machine(address: str, local: bool) -> None:
    assert identity.is_loopback(address) is local


async def test_this_machine_is_also_known_by_an_address_of_its_own(tmp_path: Path) -> None:
    client = ClientConnection(Router("r", Limits(), None, NoTelemetry()), Limits())
    for peer, own, local in (
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("127.0.0.1", "127.0.0.1", True),
    ):
        client.connection_made(Wire(peer, own))
        assert client.local is local

"""The web process's page for Prometheus, who may read it, and where the engines' pages are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.control.actor import Actor
from controlplane.fleet import models
from controlplane.live.counts import LiveCounts
from controlplane.live.socket import NOT_READING, TOO_FAST, Closed, Socket
from controlplane.web_metrics import Timed
from tests.integration.api_kit import one_model, token_of
from tests.metrics_pages import Page

FAR = {"REMOTE_ADDR": "203.0.113.7"}
PATHS = ("/metrics", "/metrics/engines")


def test_this_machine_reads_the_page_without_a_database(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert Page(answer.content).value("twinpool_live_sockets") == 0


@pytest.mark.django_db
@pytest.mark.parametrize("path", PATHS)
def test_others_sign_in_or_bring_a_token(client: Client, path: str) -> None:
    refused = client.get(path, **FAR)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert b"add_token" in refused.content
    assert client.get(path, HTTP_AUTHORIZATION="Bearer tp-nonsense", **FAR).status_code == 401
    assert client.get(path, HTTP_AUTHORIZATION=f"Bearer {token_of('viewer')}", **FAR).status_code == 200
    client.force_login(User.objects.get(), backend="django.contrib.auth.backends.ModelBackend")
    assert client.get(path, **FAR).status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize("header", ["HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_VIA"])
def test_what_a_proxy_on_this_machine_passes_on_is_not_of_this_machine(client: Client, header: str) -> None:
    assert client.get("/metrics", **{header: "127.0.0.1"}).status_code == 401


@pytest.mark.django_db
def test_a_refusal_is_counted_by_its_kind_wherever_it_was_told(client: Client) -> None:
    def refused() -> float:
        return Page(client.get("/metrics").content).value("twinpool_web_refusals_total", kind="not_found")

    before = refused()
    token = token_of("operator")
    headers: dict[str, Any] = {"HTTP_AUTHORIZATION": f"Bearer {token}", "content_type": "application/json"}
    body = {"mode": "monolithic", "reason": "try"}
    assert client.put("/api/v1/models/nope/mode", body, **headers).status_code == 404
    client.force_login(User.objects.get(), backend="django.contrib.auth.backends.ModelBackend")
    order = body | {"version": 1}
    assert client.post("/models/nope/mode", order, content_type="application/json").status_code == 404
    assert refused() == before + 2


@pytest.mark.django_db
def test_engines_that_serve_are_found_with_what_they_are_now(client: Client) -> None:
    one_model("m", prefill=1, decode=1)
    models.Engine.objects.filter(role="decode").update(url="http://10.0.0.5:8101")
    engine = models.Engine.objects.get(role="decode")
    labels = {"process": "engine", "engine": engine.id, "model": "m", "role": "decode", "arm": "main"}
    assert client.get("/metrics/engines").json() == [{"targets": ["10.0.0.5:8101"], "labels": labels}]
    models.Engine.objects.update(state="stopped")
    assert client.get("/metrics/engines").json() == []


async def test_answers_are_timed_by_area_and_status(client: Client) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503})
        await send({"type": "http.response.body", "body": b""})

    async def nowhere(*_: Any) -> None:
        pass

    def counted(area: str) -> float:
        page = Page(Client().get("/metrics").content)
        return page.get("twinpool_web_answer_seconds_count", area=area, status="5xx")

    before = {area: await asyncio.to_thread(counted, area) for area in ("api", "page")}
    for path in ("/api/v1/models", "/nodes", "/"):
        await Timed(app)({"type": "http", "path": path}, nowhere, nowhere)
    assert await asyncio.to_thread(counted, "api") == before["api"] + 1
    assert await asyncio.to_thread(counted, "page") == before["page"] + 2


class Nobody:
    """A hub that has no topics."""

    def leave(self, _reader: Any) -> None:
        pass


@pytest.mark.parametrize(("code", "by"), [(None, "client"), (NOT_READING, "4408"), (TOO_FAST, "4429")])
async def test_sockets_are_counted_by_who_ended_them(monkeypatch: pytest.MonkeyPatch, code: int | None, by: str) -> None:
    counts = LiveCounts()
    monkeypatch.setattr("controlplane.live.socket.counts", counts)
    seen: list[int] = []

    async def receive() -> dict[str, Any]:
        seen.append(counts.open)
        raise Closed(code, "over")

    async def send(_event: Any) -> None:
        pass

    hub: Any = Nobody()
    await Socket(hub, "", Actor("ann", "viewer"), receive, send).run()
    assert (seen, counts.open, dict(counts.closed)) == ([1], 0, {by: 1})

"""Nodes, an engine and the audit in a real browser: live, by keys alone, for those who only read, and on a phone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.utils import timezone
from playwright.sync_api import Page, Route, expect

from controlplane.fleet import models
from controlplane.telemetry.topics import model_topic
from tests.console_rows import find
from tests.console_web import Web
from tests.integration.test_console_browser import (
    HOSTILE,
    PASSWORD,
    Fleet,
    Visit,
    browser,
    fleet,
    login,
    people,
    pytestmark,
    visit,
    web,
)

__all__ = ["browser", "fleet", "people", "pytestmark", "visit", "web"]  # fixtures
ENGINE, MODEL = "e-llp1", "llama-3.1-70b"
SLOW = 20_000
"""ms: for what waits for several answers on a starved machine."""
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def rows_of_it(people: None, django_db_blocker: Any) -> Iterator[None]:
    """A node with an engine that was started twice, and somebody who only reads. Before the browser starts."""
    with django_db_blocker.unblock():
        node = models.Node.objects.create(name="n1", address="10.0.0.5", labels={"zone": "a"}, seen_at=timezone.now())
        model = models.Model.objects.create(name=MODEL, source="m", config={}, engine_kind="simulated", team="search")
        engine = models.Engine.objects.create(
            id=ENGINE, model=model, role="prefill", number=1, kind="simulated", state="ready", incarnation=2
        )
        models.Rank.objects.create(engine=engine, node=node)
        for number, reason in ((1, "exit 1: CUDA out of memory"), (2, "")):
            models.Incarnation.objects.create(engine=engine, number=number, started_at=timezone.now(), reason=reason)
        User.objects.create_user("look", password=PASSWORD).groups.add(Group.objects.get_or_create(name="viewer")[0])
    yield
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)


def topics(rows: Rows) -> dict[str, Rows]:
    """What ingest publishes beside the fleet: nodes with their GPUs, and the model."""
    nodes = [row for row in rows if row["type"] == "node"]
    engines = [row for row in rows if row["type"] == "engine"]
    return {
        "nodes": nodes + [_gpus(row, [each for each in engines if each["node"] == row["name"]]) for row in nodes],
        model_topic(MODEL): [row for row in rows if MODEL in (row.get("model"), row.get("name"))],
    }


def _gpus(node: dict[str, Any], engines: Rows) -> dict[str, Any]:
    held = [(engine, at) for engine in engines for at in range(len(engine["gpu_uuids"]))]
    return {
        "id": f"gpus:{node['name']}",
        "type": "gpus",
        "node": node["name"],
        "sampled_at": node["sampled_at"],
        "uuids": [engine["gpu_uuids"][at] for engine, at in held],
        "indices": [engine["gpu_indices"][at] for engine, at in held],
        "kinds": [node["gpu_kind"]] * len(held),
        **{f"{name}s": [engine[name] for engine, _ in held] for name in ("engine", "label", "model", "role")},
        "tensor": [engine["tensor"][at] if engine["tensor"] else None for engine, at in held],
        "dram": [engine["dram"][at] if engine["dram"] else None for engine, at in held],
        "memory_used_bytes": [61 << 30] * len(held),
        "memory_bytes": [80 << 30] * len(held),
        "power_w": [512.0] * len(held),
    }


@pytest.fixture
def live(fleet: Fleet) -> Fleet:
    fleet.more = topics
    return fleet


def open_page(visit: Callable[..., Visit], web: Web, path: str, user: str = "ops-1", **options: Any) -> Page:
    page: Page = visit(sign_in=False, **options).page
    page.goto(f"{web.url}{path}")
    login(page, user)
    expect(page.locator("#live")).to_contain_text("live", timeout=SLOW) if options.get("locale") is None else None
    return page


def test_nodes_show_every_gpu_live_and_are_cordoned_with_a_reason(
    visit: Callable[..., Visit], live: Fleet, web: Web
) -> None:
    page = open_page(visit, web, "/nodes")
    card = page.locator('[data-node="n1"]')
    expect(card.locator(".tile")).to_have_count(8)
    expect(card).to_contain_text("10.0.0.5")
    expect(card).to_contain_text("zone=a")
    expect(card.locator(".tile").first).to_contain_text("61/80 GiB · 512 W")
    expect(page.locator("#kpis")).to_contain_text("all report")
    card.get_by_role("button", name="Cordon").click()
    page.fill("[name=reason]", "new cooling")
    page.get_by_role("dialog").get_by_role("button", name="Cordon").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    def hot(rows: Rows) -> None:
        find(rows, "node:n1")["cordoned"] = True
        find(rows, f"engine:{ENGINE}")["tensor"][0] = 0.991
        find(rows, "node:n2").update(state="silent", sampled_at=time.time() - 12)

    live.change = hot
    expect(card.get_by_role("button", name="Uncordon")).to_be_visible()
    expect(card.locator(".tile").first).to_contain_text("99% busy")
    silent = page.locator('[data-node="n2"]')
    expect(silent).to_have_class(re.compile("is-stale"))
    expect(silent).to_contain_text("▲ stale since 1")
    expect(page.locator("#banners")).to_contain_text("Node n2 has not reported for")
    expect(page.locator("#kpis")).to_contain_text("stale left out")
    page.get_by_label("Filter nodes").fill("n2")
    expect(page.locator("[data-node]")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=n2$"))
    page.goto(f"{web.url}/audit?q=cooling")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    expect(page.locator("#list tbody tr")).to_contain_text("cordoned false → true")


def test_keys_alone_lead_through_the_console(visit: Callable[..., Visit], live: Fleet, web: Web) -> None:
    page = open_page(visit, web, "/")
    for keys, path in (("gn", "/nodes"), ("gl", "/audit"), ("go", "/operations"), ("gm", "/models"), ("gf", "/")):
        for key in keys:
            page.keyboard.press(key)
        expect(page).to_have_url(re.compile(rf"{web.url}{path}(/.*)?$"))
        expect(page.locator("#live")).to_contain_text("live", timeout=SLOW)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_contain_text("Nodes")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("n1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{web.url}/nodes#n1")
    expect(page.locator("[data-node]")).to_have_count(8)
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator('[data-node="n2"]')).to_have_attribute("data-chosen", "true")
    page.keyboard.press("k")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_contain_text("n1")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.locator("#list tbody tr").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_contain_text("After")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_have_count(0)


def test_an_engine_is_followed_with_its_log(visit: Callable[..., Visit], live: Fleet, web: Web) -> None:
    opened = visit(sign_in=False)
    page = opened.page
    lines = [HOSTILE, "ERROR no memory"]

    def answer(route: Route) -> None:
        told = {"node": "n1", "incarnation": 2, "lines": lines, "stamp": str(len(lines))}
        route.fulfill(content_type="application/json", body=json.dumps(told))

    page.route("**/engines/*/log*", answer)
    page.goto(f"{web.url}/engines/{ENGINE}")
    login(page)
    expect(page.locator("#head")).to_contain_text("P1")
    expect(page.locator("#kpis")).to_contain_text("2running4waiting")
    expect(page.locator("#starts tbody tr")).to_have_count(2)
    expect(page.locator("#starts")).to_contain_text("exit 1: CUDA out of memory")
    expect(page.locator("#peers")).to_contain_text("No peers", timeout=SLOW)
    log = page.locator("#log")
    log.scroll_into_view_if_needed()
    expect(log.locator(".log")).to_contain_text(HOSTILE, timeout=SLOW)
    expect(log.locator(".log-bad")).to_have_text("ERROR no memory")
    lines.append("and on it goes")
    expect(log.locator(".log")).to_contain_text("and on it goes", timeout=SLOW)
    assert page.locator(".log img").count() == 0

    live.change = lambda rows: find(rows, f"engine:{ENGINE}").update(state="draining", waiting=0)
    expect(page.locator("#head")).to_contain_text("draining")
    expect(page.locator("#announce")).to_contain_text("P1 is draining")
    page.unroute("**/engines/*/log*")
    page.route("**/engines/*/log*", lambda route: route.fulfill(status=503, body='{"error": "nobody there"}'))
    expect(log.get_by_role("alert")).to_contain_text("The log cannot be had: nobody there", timeout=SLOW)
    expect(log.locator(".log")).to_contain_text("and on it goes")
    opened.complaints[:] = [text for text in opened.complaints if "503" not in text]


def test_who_only_reads_sees_every_action_and_who_may(visit: Callable[..., Visit], live: Fleet, web: Web) -> None:
    page = open_page(visit, web, "/nodes", "look")
    expect(page.locator("#read-only")).to_contain_text("Your role is viewer")
    cordon = page.locator('[data-node="n1"]').get_by_role("button", name="Cordon")
    expect(cordon).to_be_disabled()
    expect(cordon).to_have_attribute("title", "Needs the role operator")
    page.goto(f"{web.url}/engines/{ENGINE}")
    expect(page.get_by_role("button", name="Restart")).to_be_disabled()
    expect(page.locator("#log")).to_contain_text("Needs the role operator, or owner in team search")


@pytest.mark.parametrize("path", ["/nodes", f"/engines/{ENGINE}", "/audit", "/find?q=n"])
def test_a_phone_scrolls_no_page_sideways(visit: Callable[..., Visit], live: Fleet, web: Web, path: str) -> None:
    page = open_page(visit, web, path, width=390, height=844, theme="light", locale="vi-VN")
    expect(page.locator("html")).to_have_attribute("lang", "vi")
    expect(page.locator("main table, main .tile, main .facts").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") == 390

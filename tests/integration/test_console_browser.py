"""The fleet page in a real browser, against a real web process and rows published as ingest publishes them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from axes.models import AccessAttempt, AccessLog
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, expect
from redis.asyncio import Redis

from controlplane.fleet.models import Operation
from controlplane.stack.ports import free_port
from controlplane.telemetry.publish import Publisher
from controlplane.telemetry.topics import model_topic
from tests.console_rows import find, rows
from tests.console_visitors import CHROMIUM, PASSWORD, chromium
from tests.console_web import Web

# Skipped in the open where no browser is, so that a newcomer's first run passes; in CI a missing browser is an error.
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
)

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><a href='javascript:0'>n</a><script>document.title='owned'</script>&amp;"
)


@dataclass
class Fleet:
    """What ingest does: publishes all rows twice a second, moved to now, after `change` had its way with them."""

    valkey_url: str
    change: Callable[[list[dict[str, Any]]], None] = lambda _rows: None
    more: Callable[[list[dict[str, Any]]], dict[str, list[dict[str, Any]]]] = lambda _rows: {}
    """Other topics, made of the rows."""
    paused: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        valkey = Redis.from_url(self.valkey_url)
        publisher = Publisher(valkey)
        while not self._stop.is_set():
            if not self.paused:
                now = time.time()
                fleet = rows(now)
                self.change(fleet)
                await publisher.publish({"fleet": fleet} | _by_model(fleet) | self.more(fleet), now)
            await asyncio.sleep(0.5)
        await valkey.aclose()

    def stop(self) -> None:
        self._stop.set()


def _by_model(fleet: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = [row["name"] for row in fleet if row["type"] == "model"]
    return {model_topic(name): [row for row in fleet if name in (row.get("model"), row.get("name"))] for name in names}


@pytest.fixture(scope="module")
def people(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Written before the browser starts and removed after it ended: its loop runs in this thread, and Django's connections
    are others while one does."""
    with django_db_blocker.unblock():
        for name in ("ops-1", "locked"):
            User.objects.create_user(name, password=PASSWORD)
        User.objects.get(username="ops-1").groups.add(Group.objects.get_or_create(name="operator")[0])
        Operation.objects.create(
            verb="rebalance", actor="ops-2", reason="more prompts", state="done", finished_at=timezone.now()
        )
    yield
    with django_db_blocker.unblock():
        for model in (User, Group, Session, AccessAttempt, AccessLog, Operation):
            model.objects.all().delete()


@pytest.fixture(scope="module")
def web(people: None, valkey_url: str) -> Iterator[Web]:
    web = Web(free_port())
    web.start()
    yield web
    web.stop()


@pytest.fixture(scope="module")
def browser(people: None) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[Fleet]:
    fleet = Fleet(valkey_url)
    thread = threading.Thread(target=fleet.run)
    thread.start()
    yield fleet
    fleet.stop()
    thread.join(10)


@dataclass
class Visit:
    context: BrowserContext
    page: Page
    complaints: list[str]


@pytest.fixture
def visit(browser: Browser, web: Web) -> Iterator[Callable[..., Visit]]:
    """Opens the console in a context of its own. What the browser complains about (errors of scripts, refused content) fails
    the test, unless it is only that the server was away."""
    visits: list[Visit] = []

    def opened(
        theme: str = "dark", width: int = 1440, height: int = 900, locale: str = "en-GB", sign_in: bool = True
    ) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": height}, locale=locale, timezone_id="Asia/Bangkok")
        context.add_cookies([{"name": "theme", "value": theme, "url": web.url}])
        page = context.new_page()
        visit = Visit(context, page, [])
        page.on("console", lambda message: message.type in ("error", "warning") and visit.complaints.append(message.text))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visits.append(visit)
        page.goto(f"{web.url}/")
        if sign_in:
            login(page)
        return visit

    yield opened
    for each in visits:
        each.context.close()
        assert [text for text in each.complaints if "ERR_CONNECTION_REFUSED" not in text] == []


def login(page: Page, name: str = "ops-1", password: str = PASSWORD) -> None:
    page.fill("[name=username]", name)
    page.fill("[name=password]", password)
    page.press("[name=password]", "Enter")


def tile(page: Page, label: str, model: str = "llama-3.1-70b") -> Any:
    return page.locator(f'[data-model="{model}"] .tile').filter(has=page.locator(f'.id b:text-is("{label}")'))


def test_tiles_figures_and_operations_appear_and_follow_the_fleet(visit: Callable[..., Visit], fleet: Fleet) -> None:
    page = visit().page
    expect(page.locator(".tile[class]:not(.spare)")).to_have_count(19)
    expect(page.locator("#live")).to_contain_text("live")
    expect(tile(page, "P3")).to_contain_text("queue 11")
    expect(tile(page, "D4", "mixtral-8x7b")).to_contain_text("starting")
    expect(tile(page, "M2", "qwen3-32b")).to_contain_text("6 left")
    expect(page.locator('[data-kpi="ttft"]')).to_contain_text("310 ms over SLO · llama-3.1-70b")
    expect(page.locator('[data-kpi="transfer"] .big')).to_have_text("88ms p99")
    expect(page.locator('[data-model="llama-3.1-70b"] .flow')).to_contain_text("14.4GB/s")
    expect(page.locator('[data-model="qwen3-32b"] .flow')).to_contain_text("off")
    lanes = page.locator('[data-model="mixtral-8x7b"] .lane')
    assert [lane.get_attribute("data-role") for lane in lanes.all()] == ["prefill", "decode"]
    expect(page.locator('[data-model="mixtral-8x7b"] .flow')).to_contain_text("0.72GB/s")
    expect(page.locator("#spare .tile")).to_contain_text("4 GPUs")
    expect(page.locator("#operations li").first).to_contain_text("step 3 of 6")

    def busier(all_rows: list[dict[str, Any]]) -> None:
        one = next(row for row in all_rows if row["type"] == "engine" and row["label"] == "P1")
        one["waiting"], one["tensor"] = 37, [0.5, None, 0.5, 0.5]
        find(all_rows, "fleet")["transfer"]["p99"] = 1204.0
        other = next(row for row in all_rows if row["type"] == "engine" and row["label"] == "P2")
        other |= {"state": "failed", "reason": "exit 1: CUDA out of memory"}
        all_rows[:] = [row for row in all_rows if row["id"] != "model:qwen3-32b"]

    fleet.change = busier
    expect(tile(page, "P1")).to_contain_text("50% tensor")
    expect(tile(page, "P1").locator(".hot")).to_have_text("queue 37")
    expect(tile(page, "P2").locator(".say.bad")).to_have_text("failed")
    expect(tile(page, "P2")).to_contain_text("exit 1: CUDA out of memory")
    expect(page.locator("#announce")).to_contain_text("P2 of llama-3.1-70b failed")
    expect(page.locator('[data-kpi="transfer"] .big')).to_have_text("1.20s p99")
    expect(page.locator('[data-model="qwen3-32b"]')).to_have_count(0)


def test_an_engine_without_samples_is_marked_stale_and_keeps_its_numbers(visit: Callable[..., Visit], fleet: Fleet) -> None:
    def silent(all_rows: list[dict[str, Any]]) -> None:
        for row in all_rows:
            if row["type"] == "engine" and row["node"] == "n1":
                row["sampled_at"] -= 11
        find(all_rows, "node:n1").update(state="silent", sampled_at=time.time() - 12)

    fleet.change = silent
    page = visit().page
    expect(tile(page, "P1").locator(".say.warn")).to_contain_text("stale 1")
    expect(tile(page, "P1")).to_contain_text("% tensor")
    expect(tile(page, "P3").locator(".say.warn")).to_have_count(0)
    expect(page.locator("#banners .banner")).to_contain_text("Node n1 has not reported for")
    expect(page.locator('[data-model="llama-3.1-70b"] .lane > header .say.warn').first).to_contain_text("left out")
    fleet.change = lambda _rows: None
    expect(page.locator(".tile .say.warn")).to_have_count(0)
    expect(page.locator("#banners")).to_be_hidden()


def test_what_is_stale_is_in_no_mean_and_spare_gpus_of_a_silent_node_stay(visit: Callable[..., Visit], fleet: Fleet) -> None:
    def silent(all_rows: list[dict[str, Any]]) -> None:
        for row in all_rows:
            if row["type"] == "engine" and row["model"] == "qwen3-32b":
                row["sampled_at"] = time.time() - 11
        find(all_rows, "node:n7").update(state="silent", sampled_at=time.time() - 12)

    page = visit().page
    seen = page.locator('[data-model="qwen3-32b"] .whatif div').last
    expect(seen).to_contain_text("50 %")
    expect(page.locator("#spare")).to_contain_text("4 GPUs no engine holds")
    fleet.change = silent
    expect(seen.locator("dd").first).to_have_text("—")
    expect(page.locator("#spare .tile .say.warn")).to_have_text("silent")
    expect(page.locator("#spare")).to_contain_text("0 GPUs no engine holds · 4 stale left out")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_stale_tile_keeps_its_label_inside_in_vietnamese_too(
    visit: Callable[..., Visit], fleet: Fleet, width: int
) -> None:
    def old(all_rows: list[dict[str, Any]]) -> None:
        for row in all_rows:
            if row["type"] == "engine":
                row["sampled_at"] = time.time() - 3 * 3600 - 59 * 60
            if row["id"] == "operation:39":
                row["outcome"] = "2 steps done"

    fleet.change = old
    page = visit(width=width, locale="vi-VN").page
    expect(tile(page, "P1").locator(".st")).to_have_text("cũ 3 giờ")
    expect(page.locator("#operations li").nth(2)).to_contain_text("xong 2 bước")
    outside = """tiles => tiles.filter(tile => {
        const box = tile.getBoundingClientRect();
        return [...tile.querySelectorAll(".id > *")].some(part => part.getBoundingClientRect().right > box.right);
    }).length"""
    assert page.locator(".tile").evaluate_all(outside) == 0


def test_lost_telemetry_is_said_while_it_matters(visit: Callable[..., Visit], fleet: Fleet) -> None:
    fleet.change = lambda all_rows: find(all_rows, "fleet").update(gaps=12)
    page = visit().page
    expect(page.locator("#banners .banner")).to_contain_text("12 telemetry records were lost in 5 min")
    fleet.change = lambda _rows: None
    expect(page.locator("#banners")).to_be_hidden()


def test_when_ingest_stops_the_page_says_how_old_it_is(visit: Callable[..., Visit], fleet: Fleet) -> None:
    page = visit().page
    expect(page.locator("#live")).to_contain_text("live")
    fleet.paused = True
    expect(page.locator("#live.is-stale")).to_contain_text("stale since", timeout=15_000)
    expect(page.locator("#kpis.is-stale .big").first).to_contain_text("30.5")
    fleet.paused = False
    expect(page.locator("#live")).to_contain_text("live", timeout=15_000)
    expect(page.locator(".is-stale")).to_have_count(0)


def test_a_lost_server_is_announced_and_found_again(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = visit().page
    expect(page.locator("#live")).to_contain_text("live")
    for late in ("#engine-tables summary", ".heat-key .seg", "#waste [data-end] summary"):
        expect(page.locator(late).first).to_be_attached(timeout=20_000)
    page.wait_for_load_state("networkidle")  # scripts that come later must not meet a server that is gone
    web.stop()
    banner = page.locator("#disconnected")
    expect(banner).to_contain_text("Disconnected from the control plane since", timeout=15_000)
    expect(page.locator("#live.is-off")).to_contain_text("disconnected 0:")
    expect(tile(page, "P3")).to_contain_text("queue 11")
    web.start()
    # It may have come back by itself by now: then the button is hidden and does nothing.
    banner.get_by_text("Retry now").evaluate("button => button.click()")
    expect(banner).to_be_hidden(timeout=20_000)
    expect(page.locator("#live")).to_contain_text("live")


def test_nothing_can_be_changed_while_the_page_is_cut_off(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = visit().page
    expect(page.locator("#live")).to_contain_text("live")
    page.keyboard.press("g")
    page.keyboard.press("o")
    undo = page.locator("#list tr", has_text="more prompts").get_by_role("button", name="Undo")
    undo.click()
    expect(page.locator("#live")).to_contain_text("live")
    page.fill("[name=reason]", "no use")
    confirm = page.get_by_role("dialog").get_by_role("button", name="Roll back")
    expect(confirm).to_be_enabled()
    page.wait_for_load_state("networkidle")
    web.stop()
    expect(confirm).to_be_disabled(timeout=20_000)
    expect(undo).to_have_attribute("title", "Disconnected: nothing can be changed now")
    web.start()
    expect(confirm).to_be_enabled(timeout=30_000)


def test_the_heat_is_drawn_and_a_failed_one_can_be_tried_again(visit: Callable[..., Visit], fleet: Fleet) -> None:
    opened = visit(height=2000)
    heat = opened.page.locator("#heat")
    expect(heat.locator("[data-plot] image")).to_have_count(3, timeout=60_000)
    expect(heat.locator("[data-meta]")).to_contain_text("60 GPUs · 15 min")
    opened.page.route("**/history/gpus*", lambda route: route.fulfill(status=500, body="no"))
    heat.get_by_role("radio", name="2 h").check()
    expect(heat.get_by_role("alert")).to_contain_text("HTTP 500")
    opened.page.unroute("**/history/gpus*")
    heat.get_by_role("button", name="Try again").click()
    expect(heat.locator("[data-meta]")).to_contain_text("2 h")
    opened.complaints[:] = [text for text in opened.complaints if "500" not in text]


def test_hostile_names_are_shown_and_do_nothing(visit: Callable[..., Visit], fleet: Fleet) -> None:
    def hostile(all_rows: list[dict[str, Any]]) -> None:
        for row in all_rows:
            for name in ("name", "model", "label", "node", "reason", "actor", "outcome", "gpu_kind", "ttft_model", "verb"):
                if isinstance(row.get(name), str):
                    row[name] = HOSTILE if name != "label" else f"{HOSTILE}{row['id']}"
            if row["type"] == "node":
                row["state"] = "silent"

    fleet.change = hostile
    page = visit().page
    expect(page.locator(".band h2").first).to_have_text(HOSTILE)
    expect(page.locator("#banners .banner").first).to_contain_text(HOSTILE)
    expect(page.locator("#operations li").first).to_contain_text(HOSTILE)
    heat = page.locator("#heat")
    heat.scroll_into_view_if_needed()
    expect(heat.locator("[data-plot] image").first).to_be_attached(timeout=60_000)
    box = heat.locator(".nsewdrag").bounding_box()
    assert box
    # The newest cells stand at the right edge; the very last one may have no sample yet.
    deadline = time.monotonic() + 60
    while not heat.locator(".hovertext").count() and time.monotonic() < deadline:
        for x in (1, 4, 7, 10):
            page.mouse.move(box["x"] + box["width"] - x, box["y"] + 4)
            page.wait_for_timeout(50)
    expect(heat.locator(".hovertext")).to_contain_text("<img src=x")
    assert page.locator("main img, #heat [data-plot] a, main script:not([type])").count() == 0
    assert page.title() == "Fleet · Twinpool"


def test_an_empty_fleet_says_what_to_do(visit: Callable[..., Visit], fleet: Fleet) -> None:
    def nothing(all_rows: list[dict[str, Any]]) -> None:
        row = find(all_rows, "fleet") | {"requests_per_s": None, "effective_gpus": None, "effective_by_role": {}, "gpus": 0}
        none = {"p50": None, "p99": None, "count": 0}
        all_rows[:] = [row | {"ttft": none, "itl": none, "transfer": none, "ttft_slo_ms": None, "output_tokens_per_s": None}]

    fleet.change = nothing
    page = visit().page
    expect(page.locator("#bands")).to_contain_text("manage.py join-token NODE")
    expect(page.locator("#bands")).to_contain_text("manage.py register_model NAME")
    expect(page.locator('[data-kpi="ttft"] .big')).to_have_text("—")
    expect(page.locator("#operations")).to_contain_text("No operations yet")
    page.locator("#heat").scroll_into_view_if_needed()
    expect(page.locator("#heat")).to_contain_text("No GPU at work yet", timeout=20_000)
    fleet.change = lambda _rows: None
    expect(page.locator(".tile").first).to_be_visible()
    page.locator("#heat").scroll_into_view_if_needed()
    expect(page.locator("#heat [data-plot] image").first).to_be_attached(timeout=60_000)


def test_the_viewer_switches_language_theme_and_sees_the_keys(visit: Callable[..., Visit], fleet: Fleet) -> None:
    page = visit().page
    page.locator(".top .menu summary").click()
    page.get_by_role("button", name="Tiếng Việt").click()
    expect(page.locator("html")).to_have_attribute("lang", "vi")
    expect(page.locator('[data-model="llama-3.1-70b"] .flow')).to_contain_text("Truyền KV")
    expect(page.locator('[data-kpi="ttft"] .big')).to_have_text("2,31s p99")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_a_phone_shows_everything_without_scrolling_sideways(visit: Callable[..., Visit], fleet: Fleet) -> None:
    page = visit(width=390, height=844, theme="light").page
    expect(page.locator(".tile").first).to_be_visible()
    for language in ("en", "vi"):
        if language == "vi":
            page.locator(".top .menu summary").click()
            page.get_by_role("button", name="Tiếng Việt").click()
            expect(page.locator("html")).to_have_attribute("lang", "vi")
            expect(page.locator(".tile").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator(".top .menu summary").click()
    page.get_by_role("button", name="Đăng xuất").click()
    expect(page.locator("[name=password]")).to_be_visible()


def test_wrong_passwords_lock_the_door_and_say_so(visit: Callable[..., Visit]) -> None:
    opened = visit(sign_in=False)
    for _ in range(8):
        login(opened.page, "locked", "not it")
        expect(opened.page.locator("[role=alert]")).to_be_visible()
    expect(opened.page.locator("[role=alert]")).to_contain_text("locked for 15 minutes")
    opened.complaints[:] = [text for text in opened.complaints if "429" not in text]

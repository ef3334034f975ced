"""The model page and the requests page in a real browser, over an hour of telemetry that the real writer stored."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command
from playwright.sync_api import Page, Route, expect

from tests import console_history
from tests.console_rows import find
from tests.console_web import Web
from tests.integration.test_console_browser import Fleet, Visit, browser, fleet, people, pytestmark, visit, web

__all__ = ["browser", "fleet", "people", "pytestmark", "visit", "web"]  # fixtures

NAME = console_history.NAME
HOSTILE = "<img src=x onerror=\"document.title='owned'\">/&amp;<b>'"
SLOW = 60_000
"""ms: for what waits for Plotly or for several answers on a starved machine."""


@pytest.fixture(scope="module", autouse=True)
def history(people: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the browser starts. What is hostile has had no record for ten minutes."""
    with django_db_blocker.unblock():
        now = time.time()
        console_history.mark(console_history.make_fleet(), now - 2000)
        console_history.record(now)
        console_history.make_hostile(HOSTILE)
        console_history.record(now - 600, HOSTILE, minutes=8)
    yield
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)


def open_page(visit: Callable[..., Visit], web: Web, path: str, **options: Any) -> Page:
    page = visit(**options).page
    expect(page.locator("#live")).to_be_visible()
    page.goto(f"{web.url}{path}")
    return page


def test_a_model_shows_its_charts_pairs_engines_and_canary(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_page(visit, web, f"/models/{NAME}", height=1400)
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    expect(page.locator("#head")).to_contain_text("5 prefill : 8 decode")
    expect(page.locator('[data-kpi="ttft"]')).to_contain_text("under SLO 2.00 s", timeout=SLOW)
    expect(page.locator("#chart-ttft path.js-line")).to_have_count(4, timeout=SLOW)  # a gap cuts both lines in two
    expect(page.locator("#chart-ttft")).to_contain_text("SLO 2.00 s")
    expect(page.locator("#chart-ttft")).to_contain_text("Canary")
    expect(page.locator("#chart-transfer .heatmaplayer")).to_be_attached(timeout=SLOW)
    expect(page.locator("#pairs .matrix td")).to_have_count(40)
    expect(page.locator("#pairs")).to_contain_text("failed")
    expect(page.locator("#handoff")).to_contain_text("decode queue")
    expect(page.locator("#waste tbody tr")).to_have_count(6)
    expect(page.locator("#canary")).to_contain_text("61 % of the proof")
    expect(page.locator("#advice .checks li")).to_have_count(6)
    rows = page.locator("#engines tbody tr")
    expect(rows).to_have_count(13)
    expect(rows.filter(has_text="P3")).to_contain_text("11")
    page.locator("#engines").get_by_role("button", name="queue").click()
    expect(rows.first).to_contain_text("P3")

    def busier(all_rows: list[dict[str, Any]]) -> None:
        find(all_rows, "engine:e-lld6")["waiting"] = 47
        find(all_rows, f"model:{NAME}")["requests_per_s"] = 23.4

    fleet.change = busier
    expect(rows.first).to_contain_text("D6")
    expect(page.locator("#head")).to_contain_text("23.4 req/s")


def test_the_time_range_is_in_the_address_and_times_are_in_the_chosen_zone(
    visit: Callable[..., Visit], fleet: Fleet, web: Web
) -> None:
    page = open_page(visit, web, f"/models/{NAME}")
    expect(page.locator("#range")).to_contain_text("times in UTC+7")
    page.get_by_role("radio", name="6 h", exact=True).check()
    expect(page).to_have_url(re.compile(r"\?range=6h$"))
    expect(page.locator('[data-kpi="requests"] .meta')).to_have_text("6 h", timeout=SLOW)
    requests = page.locator("#head").get_by_role("link", name="Requests")
    expect(requests).to_have_attribute("href", re.compile(r"range=6h&model=llama"))
    page.get_by_role("button", name="Other…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-01-01T00:00")
    dialog.get_by_label("To").fill("2026-01-01T01:00")
    dialog.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile(r"from=2025-12-31T17%3A00%3A00Z&to=2025-12-31T18%3A00%3A00Z$"))
    expect(page.locator("#chart-ttft")).to_contain_text("Nothing in this time", timeout=SLOW)
    expect(page.locator("#pairs")).to_contain_text("No handoffs in this time")
    page.go_back()
    expect(page.get_by_role("radio", name="6 h", exact=True)).to_be_checked()
    page.get_by_role("button", name="times in UTC+7").click()
    expect(page.locator("#range")).to_contain_text("times in UTC")
    page.reload()
    expect(page.get_by_role("button", name="times in UTC", exact=True)).to_be_visible()


def test_a_panel_that_fails_takes_no_other_one_with_it(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    opened = visit()
    page = opened.page
    expect(page.locator("#live")).to_contain_text("live")
    page.route("**/pairs?*", lambda route: route.fulfill(status=503, json={"error": "the query took over 5 s"}))
    page.goto(f"{web.url}/models/{NAME}")
    expect(page.locator("#pairs").get_by_role("alert")).to_contain_text("the query took over 5 s", timeout=SLOW)
    expect(page.locator("#handoff")).to_contain_text("decode queue")
    page.unroute("**/pairs?*")
    page.locator("#pairs").get_by_role("button", name="Try again").click()
    expect(page.locator("#pairs .matrix td")).to_have_count(40, timeout=SLOW)
    opened.complaints[:] = [text for text in opened.complaints if "503" not in text]


def test_figures_of_engines_are_asked_for_once_until_the_time_has_moved_by_a_cell(
    visit: Callable[..., Visit], fleet: Fleet, web: Web
) -> None:
    page = open_page(visit, web, f"/models/{NAME}")
    rows = page.locator("#engines tbody tr")
    expect(rows).to_have_count(13)
    names = rows.evaluate_all("rows => rows.map((row) => row.dataset.engine)")
    asked: Counter[str] = Counter()
    step_s = 86_400

    def answer_engines(route: Route) -> None:
        asked["engines"] += 1
        nothing = {"value": None}
        figures = {"prefix_hits": {"value": 0.123}, "transfer_bytes_per_s": nothing, "ttft": {"p99": nothing}}
        each = [
            {"engine": name, "role": role, "itl": {"p99": nothing}, **figures}
            for name in names
            for role in ("prefill", "decode")
        ]
        route.fulfill(json={"since": 0, "until": 1, "now": 1, "step_s": step_s, "found": each})

    def count_figures(route: Route) -> None:
        asked["figures"] += 1
        route.continue_()

    def until_asked(what: str, often: int) -> None:
        """The page's clock goes on until it asks again."""
        for _ in range(often - asked[what]):
            with page.expect_response(f"**/{what}?*", timeout=SLOW):
                page.evaluate("() => { const real = Date.now; Date.now = () => real() + 11_000; }")

    page.route("**/engines?*", answer_engines)
    page.route("**/figures?*", count_figures)
    page.goto(f"{web.url}/models/{NAME}")
    expect(rows.first).to_contain_text("12 %", timeout=SLOW)
    until_asked("figures", 3)
    assert asked["engines"] == 1
    page.get_by_role("radio", name="6 h", exact=True).check()
    page.wait_for_function("() => location.search === '?range=6h'")
    expect(page.locator('[data-kpi="requests"] .meta')).to_have_text("6 h", timeout=SLOW)
    assert asked["engines"] == 2


def test_requests_are_found_opened_paged_and_held(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_page(visit, web, f"/requests?range=1h&model={NAME}&order=slowest")
    rows = page.locator("#list tr.req")
    expect(rows).to_have_count(50, timeout=SLOW)
    expect(page.locator("#filters [name=model]")).to_have_value(NAME)
    expect(rows.first.locator(".wf .fill-p")).to_be_attached()
    page.locator("#filters [name=reason]").select_option("kv_lost")
    expect(rows.first.locator(".code.warn")).to_have_text("kv_lost", timeout=SLOW)
    expect(page).to_have_url(re.compile("reason=kv_lost"))
    rows.first.get_by_role("button").click()
    expect(page.locator("#list tr.detail")).to_contain_text("the prompt was computed again")
    expect(page.locator("#list tr.detail")).to_contain_text("search-platform")
    expect(page).to_have_url(re.compile("open="))
    page.go_back()
    expect(page.locator("#list tr.detail")).to_have_count(0)
    page.go_back()
    expect(page.locator("#filters [name=reason]")).to_have_value("")
    expect(rows).to_have_count(50, timeout=SLOW)
    first = rows.first.get_attribute("data-request")
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).not_to_have_attribute("data-request", first or "", timeout=SLOW)
    page.get_by_role("button", name="First page").click()
    expect(rows.first).to_have_attribute("data-request", first or "", timeout=SLOW)
    page.keyboard.press(".")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#list tr.detail")).to_have_count(1)
    with page.expect_download() as download:
        page.locator("#told .takeaway summary").click()
        page.locator("#told").get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "twinpool-requests.csv"
    page.get_by_role("button", name="What the reasons mean").click()
    expect(page.get_by_role("dialog")).to_contain_text("This router is being stopped.")


def test_hostile_names_are_text_and_old_figures_say_how_old(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_page(visit, web, f"/models/{quote(HOSTILE)}", height=1400)
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.locator("#chart-ttft .stale-note")).to_contain_text("stale since", timeout=SLOW)
    expect(page.locator("#chart-ttft .js-line").last).to_be_attached(timeout=SLOW)
    expect(page.locator("#pairs .matrix")).to_be_visible()
    assert page.title() == f"{HOSTILE} · Twinpool"
    page.locator("#head").get_by_role("link", name="Requests").click()
    expect(page.locator("#list tr.req").first).to_contain_text(HOSTILE, timeout=SLOW)
    page.locator("#list tr.req button").first.click()
    expect(page.locator("#list tr.detail")).to_be_visible()
    assert page.title() == "Requests · Twinpool"
    assert page.locator("main img").count() == 0


def test_an_axis_of_small_numbers_names_each_tick_apart(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    """Ticks at 0.05, 0.10 and 0.15 once read 0.1, 0.1 and 0.2."""
    page = visit().page

    def nearly_idle(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        for series in document["found"]["lines"].values():
            series["values"] = [None if value is None else 0.14 for value in series["values"]]
        route.fulfill(response=answer, json=document)

    page.route("**/pool_series*", nearly_idle)
    page.goto(f"{web.url}/models/{NAME}")
    for chart in ("#chart-queue", "#chart-effective"):
        page.locator(chart).scroll_into_view_if_needed()
        ticks = page.locator(f"{chart} .ytick text")
        expect(ticks).to_have_text(["0.05", "0.1", "0.15"], timeout=SLOW)
    expect(page.locator("#chart-queue .series")).to_contain_text("0.14")


def test_a_range_of_another_year_names_the_year(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_page(visit, web, f"/models/{NAME}?from=2020-01-01T12:00Z&to=2021-01-01T12:00Z")
    chosen = page.locator("main").get_by_text(re.compile("2020.*–.*2021"))
    expect(chosen.first).to_be_visible()


def test_a_phone_names_both_spans_of_waste_over_their_columns(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    for width, columns in ((390, 2), (1440, 4)):
        page = open_page(visit, web, "/", width=width, height=844)
        page.locator("#waste").scroll_into_view_if_needed()
        spans = page.locator("#waste th.span:visible")
        expect(spans).to_have_text(["today", "30 days"], timeout=SLOW)
        assert [span.get_attribute("colspan") for span in spans.all()] == [str(columns)] * 2
        expect(page.locator("#waste thead tr:last-child th:visible")).to_have_count(1 + 2 * columns)


def test_a_phone_shows_both_pages_without_scrolling_sideways(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_page(visit, web, f"/models/{NAME}", width=390, height=844, theme="light", locale="vi-VN")
    expect(page.locator("#chart-ttft .js-line").last).to_be_attached(timeout=SLOW)
    expect(page.locator("#engines tbody tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.goto(f"{web.url}/requests?range=1h")
    page.locator("#list tr.req button").first.click()
    expect(page.locator("#list tr.detail")).to_contain_text("Vì sao đi đường này")
    assert page.evaluate("document.documentElement.scrollWidth") == 390

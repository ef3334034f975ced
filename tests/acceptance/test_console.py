"""The console as a whole, on a running fleet: every page in both themes and on a phone, two viewers, Valkey stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from stack import Stack, until

from tests.console_visitors import CHROMIUM, SLOW_MS, chromium, complaints_of, make_people, painted, places, signed_in

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
    ),
    pytest.mark.timeout(600),
]
MODEL = "llama-3.1-70b"
SERIOUS = ("serious", "critical")
CONTRAST = "color-contrast"
"""The rule that takes longest, and the only one to which colors matter."""
PROPOSE = f"""
from controlplane.fleet.models import Model
from tests.integration.proposal_rows import carried_out
print(carried_out(Model.objects.get(name={MODEL!r})).pk)
"""
LIGHT = "document.documentElement.dataset.theme = 'light'"


@pytest.fixture(scope="module")
def pages(demo: Stack) -> dict[str, str]:
    """Every page's address, after requests of which they tell and people who look at them."""
    demo.manage("shell", "-c", make_people({"seer": "admin", "guest": "viewer"}))
    for number in range(3):
        demo.ask("completions", {"model": MODEL, "prompt": f"{number} " * 300, "max_tokens": 4, "stream": True})
    until(lambda: demo.rows("SELECT count(*) FROM telemetry_request")[0][0] >= 3, what="the requests are stored")
    engine = demo.rows("SELECT id FROM fleet_engine WHERE state = 'ready' ORDER BY id LIMIT 1")[0][0]
    operation = demo.rows("SELECT max(id) FROM fleet_operation")[0][0]
    proposal = demo.manage("shell", "-c", PROPOSE).stdout.split()[-1]
    return places(engine, operation, MODEL) | {"proposal": f"/proposals/{proposal}"}


@pytest.fixture(scope="module")
def browser(pages: dict[str, str]) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def faults(page: Page, rules: dict[str, Any]) -> list[str]:
    """What axe finds that keeps somebody from using the page, one line for each kind."""
    found = Axe().run(page, options={"resultTypes": ["violations"]} | rules).response["violations"]
    return [f"{each['id']}: {[node['target'] for node in each['nodes']][:5]}" for each in found if each["impact"] in SERIOUS]


@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_can_be_used_by_everybody_and_complains_of_nothing(
    demo: Stack, browser: Browser, pages: dict[str, str], width: int
) -> None:
    context = signed_in(browser, demo.console_url, "seer", "dark", width)
    found: dict[str, list[str]] = {}
    for name, path in pages.items():
        page = context.new_page()
        complaints = complaints_of(page)
        page.goto(demo.console_url + path)
        painted(page)
        sideways = page.evaluate("document.documentElement.scrollWidth") > width
        found[name] = faults(page, {"rules": {CONTRAST: {"enabled": width > 390}}})
        if width > 390:
            page.evaluate(LIGHT)
            found[name] += faults(page, {"runOnly": [CONTRAST]})
        found[name] += complaints + (["scrolls sideways"] if sideways else [])
        page.close()
    context.close()
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.fixture
def two(demo: Stack, browser: Browser, pages: dict[str, str]) -> Iterator[list[Page]]:
    """The fleet as two people see it, each in a browser of their own."""
    contexts = [signed_in(browser, demo.console_url, name) for name in ("seer", "guest")]
    opened = [context.new_page() for context in contexts]
    for page in opened:
        page.goto(demo.console_url + pages["fleet"])
        painted(page)
    yield opened
    for context in contexts:
        context.close()


FIGURES = """() => [...document.querySelectorAll("#kpis .big, #bands [data-engine] .vals, #bands .flow b")]
    .map((each) => each.innerText)"""
LIVE, STALE = re.compile("^live"), re.compile("^stale since")


def marks(pages: list[Page], words: re.Pattern[str]) -> None:
    for page in pages:
        expect(page.locator("#live")).to_have_text(words, timeout=SLOW_MS)


def test_two_viewers_see_the_same_numbers(demo: Stack, two: list[Page]) -> None:
    with demo.frozen("ingest"):  # so that no frame comes between one look and the other
        marks(two, STALE)
        first, second = (page.evaluate(FIGURES) for page in two)
        assert len(first) >= 6 + 8  # key figures, engines
        assert first == second
    marks(two, LIVE)
    assert all(page.locator("#kpis.is-stale, .panel.is-stale").count() == 0 for page in two)


def test_pages_say_that_they_are_stale_while_valkey_is_away_and_are_live_after_it(demo: Stack, two: list[Page]) -> None:
    numbers = [page.locator("[data-kpi] .big").first for page in two]
    with demo.frozen("valkey"):
        marks(two, STALE)
        assert all(re.search(r"\d", number.inner_text()) for number in numbers)  # kept, and marked
        expect(two[0].locator("#kpis")).to_have_class(re.compile("is-stale"))
        opened = [two[0].context.new_page() for _ in range(2)]
        for page, path in zip(opened, ("/nodes", f"/models/{MODEL}"), strict=True):
            page.goto(demo.console_url + path)
        for page in opened:  # a page that has never been live says why, too
            expect(page.locator("#nothing-live")).to_contain_text("No live figures since this page", timeout=SLOW_MS)
    marks([*two, *opened], LIVE)
    for page in opened:
        expect(page.locator("#nothing-live")).to_be_hidden()
        page.close()
    demo.restarted("valkey", demo.kill("valkey"))  # and when all that it had is lost
    marks(two, LIVE)
    until(lambda: demo.ask("completions", {"model": MODEL, "prompt": "once more", "max_tokens": 2}).status == 200)

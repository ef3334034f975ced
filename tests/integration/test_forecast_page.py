"""The page of a forecast in a real browser: complete in itself, in both themes, on a phone, and safe with hostile names."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from playwright.sync_api import Browser, Page, expect

from tests.console_visitors import CHROMIUM, chromium

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
)

TRACES = Path(__file__).parents[1] / "data" / "traces"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">{{ x }}<\\u002fscript><script>document.title='owned'<"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    trace = folder / f"{HOSTILE}.jsonl"
    shutil.copy(TRACES / "twinpool.jsonl", trace)
    target = folder / "forecast.html"
    layouts = (
        "--layout",
        "agg:4xTP1@l40s",
        "--layout",
        "disagg:2xTP1@l40s+2xTP1@l40s",
        "--layout",
        "cond:2xTP1@l40s+2xTP1@l40s",
    )
    call_command(
        "forecast", "--model", "qwen3-0.6b", *layouts, "--trace", str(trace), "--html", str(target), stdout=io.StringIO()
    )
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def opened(browser: Browser, file: Path, scheme: str, width: int) -> tuple[Page, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
    page.goto(file.as_uri())
    expect(page.locator("#ttft .main-svg").first).to_be_visible()
    expect(page.locator("#itl .main-svg").first).to_be_visible()
    return page, complaints


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 1280), ("dark", 390)])
def test_the_page_draws_itself_without_a_network(browser: Browser, page_file: Path, scheme: str, width: int) -> None:
    page, complaints = opened(browser, page_file, scheme, width)
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing hangs out of a phone"
    background = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    assert background == ("rgb(10, 12, 15)" if scheme == "dark" else "rgb(243, 244, 246)")
    assert page.locator("#ttft .scatterlayer .trace").count() == 3
    assert page.locator(".pool.p, .pool.d, .pool.m").count() == 5
    page.context.close()


def test_the_page_says_what_it_was_made_from_and_what_is_guessed(browser: Browser, page_file: Path) -> None:
    page, _ = opened(browser, page_file, "dark", 1280)
    text = page.locator("main").inner_text()
    for part in (
        "qwen3-0.6b",
        "TTFT, p99 (limit 2 s)",
        "Made from",
        "60 requests",
        "guess: the efficiencies of l40s",
        "US$",
    ):
        assert part in text
    page.context.close()


def test_hostile_names_stay_text(browser: Browser, page_file: Path) -> None:
    page, complaints = opened(browser, page_file, "dark", 1280)
    assert page.title() == "Forecast: qwen3-0.6b"
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("main").inner_text()
    assert complaints == []
    page.context.close()


def test_the_lines_follow_the_theme(browser: Browser, page_file: Path) -> None:
    page, _ = opened(browser, page_file, "dark", 1280)
    line = page.locator("#ttft .scatterlayer .trace path.js-line").first
    before = line.evaluate("node => getComputedStyle(node).stroke")
    page.emulate_media(color_scheme="light")
    expect(line).not_to_have_css("stroke", before)
    page.context.close()

"""The advisor's page in a real browser: asked, it follows the simulation, holds its inputs in the link, says remedies."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import Group, User
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from controlplane.stack.ports import free_port
from tests.console_visitors import CHROMIUM, FLAGS, PASSWORD, SLOW_MS, complaints_of, signed_in
from tests.console_web import Web
from tests.integration.test_console_browser import HOSTILE

CONFIG = Path(__file__).parents[2] / "controlplane" / "physics" / "model_configs" / "qwen3-0.6b.json"
LINK = "/advisor?model=qwen3-0.6b&gpu=l4&gpus=4&network_gbps=100&input_tokens=3000&output_tokens=40&slo_ttft_ms=900"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def context(django_db_setup: None, django_db_blocker: Any, valkey_url: str) -> Iterator[BrowserContext]:
    """Of a viewer, in a dark window as narrow as a phone. The user is made before the browser's loop runs in this thread."""
    with django_db_blocker.unblock():
        viewer = User.objects.create_user("look", password=PASSWORD)
        viewer.groups.add(Group.objects.get_or_create(name="viewer")[0])
    web = Web(free_port())
    web.start()
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield signed_in(browser, web.url, "look", width=390, height=844, base_url=web.url)
        browser.close()
    web.stop()
    with django_db_blocker.unblock():
        for model in (User, Group):
            model.objects.all().delete()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    complaints = complaints_of(page)
    yield page
    page.close()
    # Chromium writes every refusal of REST into its console.
    assert [each for each in complaints if "status of 422" not in each] == []


def rows(page: Page, heading: str) -> Any:
    return page.locator(f"section:has(h2#{heading}) tbody tr")


def test_a_link_is_asked_at_once_and_the_simulation_replaces_the_closed_form(page: Page) -> None:
    page.goto(LINK)
    expect(page.locator(".verdict strong")).to_be_visible(timeout=SLOW_MS)
    expect(rows(page, "checks-title")).to_have_count(6)
    expect(rows(page, "modes-title")).to_have_count(3)
    expect(page.locator("section:has(h2#modes-title) .meta")).to_contain_text("simulated with 3 draws", timeout=2 * SLOW_MS)
    expect(page.locator(".course")).to_have_count(0)
    for chart in ("first-token", "rate-ttft", "rate-itl"):
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        expect(page.locator(f"#{chart} .main-svg").first).to_be_visible(timeout=SLOW_MS)
    expect(page.locator("section:has(h2#splits-title) tr.pick")).to_have_count(1)
    expect(page.locator("section:has(h2#flips-title) dt").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_the_answer_is_taken_away_as_a_table_and_as_a_document(page: Page) -> None:
    page.goto(f"{LINK}&price=2.5&rate=3")
    expect(page.get_by_role("button", name="Export CSV")).to_be_visible(timeout=SLOW_MS)
    files = {}
    for name in ("Export CSV", "JSON"):
        with page.expect_download() as file:
            page.get_by_role("button", name=name, exact=True).click()
        files[name] = Path(file.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(files["Export CSV"])))
    document = json.loads(files["JSON"])
    assert document["inputs"]["prices"] == {"l4": 2.5} and document["charts"]["splits"]["requests_per_second"] == 3
    checks = {row["of"]: row["name"] for row in rows if row["part"] == "check"}
    assert checks == {check["name"]: check["state"] for check in document["checks"]}
    assert {"verdict", "input", "transfer", "gain", "forecast", "split", "would change"} <= {row["part"] for row in rows}
    assert [row["value"] for row in rows if (row["of"], row["name"]) == ("prices", "l4")] == ["2.5"]


def test_asking_puts_the_inputs_into_the_address_and_a_reload_brings_them_back(page: Page) -> None:
    page.goto("/audit")
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_text("Nothing asked yet")).to_be_visible(timeout=SLOW_MS)
    page.select_option("[name=model]", "own")
    page.fill("[name=config]", CONFIG.read_text())
    page.fill("[name=gpus]", "8")
    page.select_option("[name=transport]", "tcp")
    page.press("[name=gpus]", "Enter")
    expect(page.locator(".verdict strong")).to_be_visible(timeout=SLOW_MS)
    expect(rows(page, "checks-title").nth(4)).to_contain_text("TCP")
    assert "gpus=8" in page.url and "transport=tcp" in page.url and "config=" in page.url
    page.reload()
    expect(page.locator("[name=gpus]")).to_have_value("8")
    assert json.loads(page.input_value("[name=config]")) == json.loads(CONFIG.read_text())


def test_what_cannot_be_names_the_remedy_and_stays_text(page: Page) -> None:
    page.goto("/advisor")
    page.select_option("[name=model]", "own")
    page.fill("[name=config]", "{not json")
    page.click("#go")
    expect(page.locator(".failed")).to_contain_text("Paste the whole file.")
    page.fill("[name=config]", json.dumps({"architectures": [HOSTILE[:60]], "model_type": HOSTILE}))
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".failed")).to_contain_text("model config: ", timeout=SLOW_MS)
    assert "owned" not in page.title()
    page.select_option("[name=model]", "qwen3-8b")
    page.check("[name=traffic][value=trace]")
    page.set_input_files(
        "[data-trace-file]", files={"name": "t.csv", "mimeType": "text/csv", "buffer": b"x" * ((1 << 20) + 1)}
    )
    page.click("#go")
    expect(page.locator(".failed")).to_contain_text("keep its first lines only")
    expect(page.locator("#link-note")).to_contain_text("The link holds no trace")

"""The page of costs in a real browser: a month that adds up, a price set by its dialog, and on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from playwright.sync_api import Page, expect

from controlplane.fleet.models import InferenceKey
from controlplane.telemetry.tables import moment
from tests.console_rows import find
from tests.console_visitors import PASSWORD
from tests.console_web import Web
from tests.integration.test_console_browser import (
    HOSTILE,
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
from tests.integration.test_costs import hour_of, hours_between, store

__all__ = ["browser", "fleet", "people", "pytestmark", "visit", "web"]  # fixtures
SINCE, UNTIL = datetime(2026, 9, 30, 17, tzinfo=UTC), datetime(2026, 10, 31, 17, tzinfo=UTC)
"""October in Bangkok."""
SHA = "ef" * 32


@pytest.fixture(scope="module", autouse=True)
def a_month(people: None, django_db_blocker: Any) -> Iterator[None]:
    """A GPU that decodes for all of October but its last two hours, and a key of a team with a hostile name. Before the
    browser starts."""
    with django_db_blocker.unblock():
        User.objects.create_user("boss", password=PASSWORD).groups.add(Group.objects.get_or_create(name="admin")[0])
        InferenceKey.objects.create(name="web-1", team=HOSTILE[:60], sha256=SHA)
        rows = [hour_of(at) for at in hours_between(SINCE, UNTIL)][:-2]
        usage = [["llama", HOSTILE[:60], SHA[:16], moment(SINCE.timestamp()), 7, 2, 10_000_000, 5_000_000, 0]]
        store(rows, usage, UNTIL.timestamp())
    yield
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)
        with connection.cursor() as cursor:
            for name in ("telemetry_cost_hour", "telemetry_usage_hour", "telemetry_position"):
                cursor.execute(f"DELETE FROM {name}")


def open_month(visit: Callable[..., Visit], web: Web, user: str, **options: Any) -> Page:
    page: Page = visit(sign_in=False, **options).page
    page.goto(f"{web.url}/costs?month=2026-10")
    login(page, user)
    expect(page.locator("#models table")).to_be_visible(timeout=20_000)
    return page


def test_a_month_adds_up_and_changes_with_its_price(visit: Callable[..., Visit], fleet: Fleet, web: Web) -> None:
    page = open_month(visit, web, "boss")
    expect(page.locator("#span")).to_contain_text("2026-10 · Asia/Bangkok · whole month")
    expect(page.locator("#said")).to_contain_text("2 hours without any record")
    expect(page.locator("#said")).to_contain_text("list price that is a guess")
    expect(page.locator("#live")).to_contain_text("live", timeout=20_000)
    page.get_by_role("button", name="Set a price").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("[name=kind]").fill("l4")
    dialog.locator("[name=per_hour]").fill("2,00")
    dialog.locator("[name=reason]").fill("bought")
    dialog.locator("[name=valid_from]").fill("2026-01-01T00:00")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    total = f"{(31 * 24 - 2) * 2:,}.00"
    expect(page.locator("#kpis")).to_contain_text(f"${total}")
    for part in ("models", "pools", "teams", "days"):
        expect(page.locator(f"#{part} tfoot")).to_contain_text(total)
    expect(page.locator("#teams")).to_contain_text(HOSTILE[:60])
    expect(page.locator("#teams")).to_contain_text("no traffic")
    expect(page.locator("#usage")).to_contain_text("≈ 7")
    expect(page.locator("#prices")).to_contain_text("rented by the hour")
    expect(page.locator("#prices")).to_contain_text("Jan 1, 2026, 00:00")
    expect(page.locator("#said")).not_to_contain_text("list price")
    assert "owned" not in page.title()
    page.get_by_role("button", name="What is counted, and how").click()
    expect(page.locator("#definitions")).to_contain_text("the engine was ready and had no request")
    page.keyboard.press("Escape")
    with page.expect_download() as file:
        page.get_by_text("CSV for finance").click()
        page.get_by_role("link", name="by day, model, team and key").click()
    assert file.value.suggested_filename == "twinpool-lines-2026-10.csv"
    page.get_by_role("button", name="Next month").click()
    expect(page.locator("#span")).to_contain_text("2026-11")
    expect(page.locator("#models")).to_contain_text("Nothing known")
    assert "month=2026-11" in page.url
    problems = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("critical", "serious")]
    assert [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in problems] == []


def test_who_may_not_set_prices_is_told_and_a_phone_scrolls_nothing_sideways(
    visit: Callable[..., Visit], fleet: Fleet, web: Web
) -> None:
    page = open_month(visit, web, "ops-1", width=390, height=844, theme="light", locale="vi-VN")
    expect(page.locator("html")).to_have_attribute("lang", "vi")
    button = page.locator("#price-acts button")
    expect(button).to_be_disabled()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_fleet_page_tells_what_idles_and_what_a_million_tokens_take(
    visit: Callable[..., Visit], fleet: Fleet, web: Web
) -> None:
    def priced(rows: list[dict[str, Any]]) -> None:
        find(rows, "fleet").update(cost_per_hour=166.4, idle_per_hour=59.0, output_tokens_per_s=13_094.0)

    fleet.change = priced
    page = visit().page
    expect(page.locator('[data-kpi="effective"]')).to_contain_text("$59/h idle", timeout=20_000)
    expect(page.locator('[data-kpi="output"] .big')).to_have_text("$3.53/ 1M tok")
    expect(page.locator('[data-kpi="output"]')).to_contain_text("13,094 tok/s · $166/h")

    def guessed(rows: list[dict[str, Any]]) -> None:
        priced(rows)
        find(rows, "fleet")["cost_guess"] = True

    fleet.change = guessed
    expect(page.locator('[data-kpi="output"] .big')).to_have_text("≈ $3.53/ 1M tok")
    assert page.locator('[data-kpi="effective"]').evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")

"""The planner in the console, in a real browser: proposals are listed live, decided on, and the planner is set."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.db import connection
from playwright.sync_api import Browser, Page, expect
from redis.asyncio import Redis

from controlplane.control.models import PlannerHold, PlannerSetting, Proposal
from controlplane.control.planning.live import live_proposals
from controlplane.control.planning.plain import moment
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from controlplane.telemetry.live_rows import proposals_row
from controlplane.telemetry.publish import Publisher
from tests.console_visitors import CHROMIUM, PASSWORD, SLOW_MS, chromium, complaints_of, signed_in
from tests.console_web import Web
from tests.integration.control_rows import fleet
from tests.integration.planner_rows import planned, traffic
from tests.integration.proposal_rows import carried_out, rich, trade

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
    ),
    pytest.mark.timeout(600),
]
HOLD = "Nothing clearly better was found."


@pytest.fixture(scope="module")
def numbers(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, int]]:
    """Users, two models with traffic, and a proposal of each kind, by what it is."""
    with django_db_blocker.unblock():
        for name, role in (("ops-1", "operator"), ("eve", "viewer")):
            User.objects.create_user(name, password=PASSWORD).groups.add(Group.objects.get_or_create(name=role)[0])
        model = fleet("disaggregated", "m", prefill=2, decode=2)
        other = fleet("disaggregated", "other", prefill=1, decode=2)
        third = fleet("disaggregated", "third", prefill=2, decode=2)
        traffic(time.time(), 2.0, told=4)
        for each in (model, other, third):
            planned(each)
        now = time.time()
        PlannerHold.objects.create(model=other, code="hysteresis", reason=HOLD, since=moment(now - 600), seen_at=moment(now))
        made = {
            "old": carried_out(model),
            "open": rich(model),
            "trade": trade(third, other),
        }
    yield {name: row.pk for name, row in made.items()}
    with django_db_blocker.unblock():
        connection.ops.execute_sql_flush([])  # whole: the application may not delete from the audit


@pytest.fixture(scope="module")
def web(numbers: Any, valkey_url: str) -> Iterator[Web]:
    web = Web(free_port())
    web.start()
    yield web
    web.stop()


@pytest.fixture(scope="module")
def browser(numbers: Any) -> Iterator[Browser]:
    expect.set_options(timeout=SLOW_MS)
    with chromium() as browser:
        yield browser
    expect.set_options(timeout=None)


@dataclass
class Live:
    """What ingest does: publishes twice a second what the database has, here what it is told."""

    url: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with Redis.from_url(self.url) as valkey:
            publisher = Publisher(valkey)
            while not self.over.is_set():
                await publisher.publish({"alerts": self.rows[:1], "proposals": self.rows, "model:m": []}, time.time())
                await asyncio.sleep(0.5)


@pytest.fixture
def live(valkey: redis.Redis, valkey_url: str, numbers: Any, database: Any) -> Iterator[Live]:
    live = Live(valkey_url, database(told))
    thread = threading.Thread(target=live.run)
    thread.start()
    yield live
    live.over.set()
    thread.join(10)


@pytest.fixture
def database(django_db_blocker: Any) -> Callable[[Callable[[], Any]], Any]:
    """Asks what the web process sees, in a thread of its own: the browser's loop runs in this one."""

    def ask(what: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(answer, what).result()

    def answer(what: Callable[[], Any]) -> Any:
        with django_db_blocker.unblock():
            try:
                return what()
            finally:
                connection.close()

    return ask


def told() -> list[dict[str, Any]]:
    rows = live_proposals()
    return [asdict(proposals_row(rows)), *map(asdict, rows)]


def opened(
    browser: Browser, web: Web, path: str, name: str = "ops-1", theme: str = "dark", width: int = 1440
) -> tuple[Page, list[str]]:
    page = signed_in(browser, web.url, name, theme, width).new_page()
    complaints = complaints_of(page)
    page.goto(web.url + path)
    expect(page.locator("#live")).to_contain_text("live")
    return page, complaints


def decide(page: Page, confirm: str, reason: str = "on purpose") -> None:
    page.locator("dialog.ask input[name=reason]").fill(reason)
    page.locator("dialog.ask .ask-end").get_by_role("button", name=confirm, exact=True).click()


def test_open_proposals_come_first_and_leave_live(browser: Browser, web: Web, live: Live, numbers: dict[str, int]) -> None:
    page, complaints = opened(browser, web, "/proposals")
    expect(page.locator("#waiting tbody tr")).to_have_count(2)
    row = page.locator(f'#waiting [data-proposal="{numbers["open"]}"]')
    expect(row).to_contain_text("2:2 → 3:1")
    expect(row).to_contain_text("TTFT p99 is 2.6 s and may be 2 s.")
    expect(row).to_contain_text("2.60 s → 1.48 s")
    expect(page.locator("#ended tbody tr")).to_have_count(1)
    expect(page.locator("#ended tbody")).to_contain_text("ann · looks right")
    expect(page.locator("#planners tbody")).to_contain_text(HOLD)
    badge = page.locator(".nav [data-proposals]")
    expect(badge).to_have_attribute("data-count", "2")
    live.rows = [live.rows[0] | {"open": 1, "asked": 1}] + [
        each | {"state": "expired", "decision": "Nobody decided in time."}
        if each.get("number") == numbers["trade"]
        else each
        for each in live.rows[1:]
    ]
    expect(page.locator("#waiting tbody tr")).to_have_count(1)
    expect(page.locator("#ended tbody")).to_contain_text("Nobody decided in time.")
    expect(badge).to_have_attribute("data-count", "1")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/proposals/{numbers['open']}")
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_url("**/proposals")
    assert complaints == []


def test_a_list_is_filtered_by_its_address_and_taken_away(
    browser: Browser, web: Web, live: Live, numbers: dict[str, int]
) -> None:
    page, _ = opened(browser, web, "/proposals?state=executed&model=m")
    expect(page.locator("#ended tbody tr")).to_have_count(1)
    expect(page.locator("#waiting-none")).to_be_visible()
    found = page.request.get(f"{web.url}/data/proposals?model=other&format=json").json()
    names = [column["name"] for column in found["columns"]]
    assert [row[names.index("number")] for row in found["rows"]] == [numbers["trade"]], (
        "what is taken from a model is its, too"
    )
    layouts = page.request.get(f"{web.url}/data/proposals/{numbers['open']}?format=csv").text()
    assert layouts.splitlines()[3].startswith("other,disaggregated,prefill 1xTP1@l4 + decode 3xTP1@l4,,41")


def test_a_proposal_tells_all_that_it_was_made_from(browser: Browser, web: Web, live: Live, numbers: dict[str, int]) -> None:
    page, complaints = opened(browser, web, f"/proposals/{numbers['open']}")
    for part, words in {
        "change": ("prefill", "+1", "TP1 l4"),
        "figures": ("1.18 – 1.78 s", "under SLO 2.00 s", "$0.41", "bottleneck: decode"),
        "why": ("Prefill is the bottleneck.",),
        "inputs": ("30 min 0 s, 1,212 requests", "10.4 req/s (9.1 – 12.2)", "4,096", "74 %", "prefill × 1.08"),
        "others": ("cannot keep up", "It misses the TTFT target."),
        "came": ("Nothing yet",),
    }.items():
        for each in words:
            expect(page.locator(f"#{part}")).to_contain_text(each)
    expect(page.locator("#trade")).to_be_hidden()
    expect(page.locator("#inputs")).to_contain_text("3,287 in, 313 out")
    page.goto(f"{web.url}/proposals/{numbers['old']}")
    for each in ("1.56 s", "1.44 s", "−8 %", "It came 9.4 req/s, 3,100 in, 310 out."):
        expect(page.locator("#came")).to_contain_text(each)
    page.goto(f"{web.url}/proposals/{numbers['trade']}")
    for each in ("1 decode engine of other for third", "1.10 s", "other afterwards"):
        expect(page.locator("#trade")).to_contain_text(each)
    assert complaints == []


def test_a_viewer_sees_who_may_decide(browser: Browser, web: Web, live: Live, numbers: dict[str, int]) -> None:
    page, _ = opened(browser, web, f"/proposals/{numbers['open']}", "eve")
    approve = page.get_by_role("button", name="Approve")
    expect(approve).to_be_disabled()
    expect(approve).to_have_attribute("title", "Needs the role operator")
    page.keyboard.press("a")
    assert page.locator("dialog[open]").count() == 0
    page.goto(f"{web.url}/models/m/planner")
    expect(page.get_by_role("button", name="Set", exact=True)).to_have_attribute("title", "Needs the role operator")


def test_the_planner_is_set_with_its_limits_and_an_old_page_sets_nothing(
    browser: Browser, web: Web, live: Live, database: Any
) -> None:
    page, complaints = opened(browser, web, "/models/m/planner")
    old, _ = opened(browser, web, "/models/m/planner")
    expect(page.locator("#right")).to_contain_text("1.44 s")
    page.locator("input[name=moves_per_hour]").fill("3")
    page.locator("input[name=floor-decode]").fill("1")
    page.locator('input[name=degrees-decode][value="2"]').check()
    page.locator('input[name=kinds-decode][value="h100-sxm"]').check()
    page.locator("fieldset").filter(has_text="Change windows").get_by_role("button", name="Add a time").click()
    page.locator("input[name=since]").fill("22:00")
    page.locator("input[name=until]").fill("06:30")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator("dialog.ask")).to_contain_text("floors, GPU kinds, degrees, limits and times")
    with page.expect_navigation():
        decide(page, "Set")
    expect(page.locator("input[name=since]")).to_have_value("22:00")
    row = database(lambda: PlannerSetting.objects.get(model__name="m"))
    assert (row.floors, row.kinds, row.degrees) == ({"decode": 1}, {"decode": ["h100-sxm"]}, {"decode": [2]})
    night = {"since_s": 79_200.0, "until_s": 23_400.0, "daily": True, "why": ""}
    assert row.guards["moves_per_hour"] == 3 and row.guards["slots"] == [night] and row.guards["cooldown_s"] == 0.0
    old.locator("input[value=automatic]").check()
    old.get_by_role("button", name="Set", exact=True).click()
    decide(old, "Set")
    expect(old.locator("dialog.ask .reasons")).to_contain_text("version")
    assert database(lambda: PlannerSetting.objects.get(model__name="m")).level == "approve"
    assert complaints == []


def test_a_models_page_says_whether_to_disaggregate_and_why_the_planner_holds(
    browser: Browser, web: Web, live: Live, numbers: dict[str, int]
) -> None:
    page, complaints = opened(browser, web, "/models/m")
    advice = page.locator("#advice")
    for each in ("GPUs", "threshold: 16 or more", "4", f"Review proposal {numbers['open']}", "Planner: approve"):
        expect(advice).to_contain_text(each)
    expect(advice.locator(".checks li")).to_have_count(6)
    advice.get_by_role("link", name="Open in the advisor").click()
    page.wait_for_url("**/advisor?model=m")
    page.goto(f"{web.url}/models/other")
    expect(advice).to_contain_text(HOLD)
    assert complaints == []


def test_a_proposal_is_modified_approved_and_rejected_with_its_plan_and_reason(
    browser: Browser, web: Web, live: Live, numbers: dict[str, int], database: Any
) -> None:
    page, complaints = opened(browser, web, f"/proposals/{numbers['open']}")
    stale, _ = opened(browser, web, f"/proposals/{numbers['open']}")
    page.keyboard.press("m")
    page.locator("dialog.ask input[name=prefill]").fill("9")
    expect(page.locator("dialog.ask .plan")).to_contain_text("GPU")
    expect(page.locator("dialog.ask").get_by_role("button", name="Carry it out")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(page.locator("dialog.ask")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.locator("dialog.ask .plan .steps li").first).to_contain_text("D4 → P4")
    decide(page, "Approve")
    expect(page.locator("#bar h1")).to_contain_text("approved")
    expect(page.locator("#bar .facts")).to_contain_text("operation")
    row = database(lambda: Proposal.objects.get(pk=numbers["open"]))
    assert (row.state, row.decided_by, row.decision) == ("approved", "ops-1", "on purpose")
    stale.keyboard.press("x")
    decide(stale, "Reject")
    expect(stale.locator("dialog.ask .reasons")).to_contain_text("is approved")
    expect(stale.locator("#bar h1")).to_contain_text("approved")
    page.goto(f"{web.url}/proposals/{numbers['trade']}")
    expect(page.get_by_role("button", name="Modify")).to_be_disabled()
    page.keyboard.press("x")
    expect(page.locator("dialog.ask").get_by_role("button", name="Reject", exact=True)).to_be_disabled()
    decide(page, "Reject", "not today")
    expect(page.locator("#bar h1")).to_contain_text("rejected")
    expect(page.locator("#why")).to_contain_text("ops-1: not today")
    assert database(lambda: models.Operation.objects.filter(verb="reject_proposal").count()) == 1
    assert [each for each in complaints if "409 (Conflict)" not in each] == [], "but for the plan that cannot be"

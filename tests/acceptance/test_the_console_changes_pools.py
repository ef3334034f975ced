"""Operators at the console of a whole stack: a rebalance planned, started, watched and taken back; two operators at once; an
old page; somebody who may only look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.stack import Stack, started, until
from tests.console_visitors import CHROMIUM, PASSWORD, SLOW_MS, chromium, make_people

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
)
PEOPLE = {"ops-1": "operator", "ops-2": "operator", "guest": "viewer"}
MODEL = "qwen3-8b"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with started("proof") as stack:
        stack.manage("shell", "-c", make_people(PEOPLE))
        yield stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def at(stack: Stack, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page as somebody. What the browser complains about fails the test, unless a refusal was asked for."""
    complaints: list[str] = []
    contexts = []

    def opened(path: str, name: str = "ops-1") -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 1000}, locale="en-GB")
        context.set_default_timeout(SLOW_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(stack.console_url + path)
        page.fill("[name=username]", name)
        page.fill("[name=password]", PASSWORD)
        page.press("[name=password]", "Enter")
        expect(page.locator("#live")).to_contain_text("live", timeout=SLOW_MS)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in complaints if not re.search(r"status of (403|409|412|422)", text)] == []


def choose(page: Page, prefill: int) -> None:
    """With the keyboard, and wait for the plan."""
    slider = page.get_by_label("Prefill engines")
    slider.focus()
    value = int(slider.input_value())
    for _ in range(abs(prefill - value)):
        slider.press("ArrowRight" if prefill > value else "ArrowLeft")
    expect(page.locator("#plan .steps li").first).to_contain_text("New role", timeout=SLOW_MS)


def start(page: Page, reason: str) -> None:
    page.get_by_role("button", name="Start run").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Start run")).to_be_disabled()
    page.fill("[name=reason]", reason)


def confirm(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Start run").click()


def steer(page: Page, button: str, reason: str) -> None:
    page.locator("#runbar").get_by_role("button", name=button).click()
    page.fill("[name=reason]", reason)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=SLOW_MS)


def roles(stack: Stack) -> tuple[int, int]:
    engines = stack.model(MODEL).engines
    return tuple(sum(engine.role == role for engine in engines) for role in ("prefill", "decode"))  # type: ignore[return-value]


def outcome(page: Page, words: str | re.Pattern[str]) -> None:
    expect(page.locator("#runbar .say.wrap")).to_have_text(words, timeout=SLOW_MS)


def test_a_rebalance_is_planned_started_watched_and_taken_back(stack: Stack, at: Callable[..., Page]) -> None:
    page = at(f"/models/{MODEL}/rebalance")
    expect(page.get_by_role("button", name="Start run")).to_be_disabled()
    choose(page, 4)
    expect(page.locator("#target .slots .turn")).to_contain_text("→ P")
    expect(page.locator("#runbar")).to_contain_text("engines that change role")
    start(page, "more prompts since noon")
    confirm(page)
    expect(page.locator("#target")).to_contain_text("locked while run", timeout=SLOW_MS)
    outcome(page, "1 step done")
    assert roles(stack) == (4, 2)
    facts = page.locator("#runbar .facts")
    expect(facts).to_contain_text("requests lost")
    page.locator("#runbar").get_by_role("link", name="Details").click()
    expect(page.locator("h1")).to_contain_text("Rebalance qwen3-8b")
    expect(page.locator("#changed")).to_contain_text("more prompts since noon")
    expect(page.locator("#changed .kv")).to_contain_text("3 → 4")
    steer(page, "Undo", "no use")
    expect(page.locator("h1")).to_contain_text("Roll back qwen3-8b", timeout=SLOW_MS)
    outcome(page, "1 step done")
    expect(page.locator("#runbar .links")).to_contain_text("takes back operation")
    assert roles(stack) == (3, 3)
    page.locator("#runbar .links a").first.click()
    expect(page.locator("#runbar .links")).to_contain_text("taken back by operation")


def test_of_two_operators_one_wins_and_the_other_sees_who_runs_what(stack: Stack, at: Callable[..., Page]) -> None:
    one, two = at(f"/models/{MODEL}/rebalance"), at(f"/models/{MODEL}/rebalance", "ops-2")
    for page, prefill in ((one, 4), (two, 2)):
        choose(page, prefill)
        start(page, "mine")
    confirm(one)
    expect(one.get_by_role("dialog")).to_have_count(0, timeout=SLOW_MS)
    confirm(two)
    said = two.get_by_role("dialog").get_by_role("alert")
    expect(said).to_contain_text(re.compile("of ops-1 still runs|has changed since"), timeout=SLOW_MS)
    two.keyboard.press("Escape")
    # It follows the other's run, or says what that run did if it has ended already.
    followed = two.locator("#runbar").get_by_text("by ops-1")
    expect(followed.or_(two.locator("#stale").get_by_text("ops-1")).first).to_be_visible(timeout=SLOW_MS)
    outcome(one, "1 step done")
    two.goto(one.locator("#runbar").get_by_role("link", name="Details").evaluate("link => link.href"))
    outcome(two, "1 step done")
    assert roles(stack) == (4, 2)
    steer(two, "Undo", "back")
    outcome(two, re.compile("step done"))
    until(lambda: roles(stack) == (3, 3), what="the first split again")


def test_a_page_that_is_old_changes_nothing_and_says_what_was_done_meanwhile(stack: Stack, at: Callable[..., Page]) -> None:
    page = at(f"/models/{MODEL}/rebalance")
    choose(page, 4)
    page.get_by_role("button", name="Start run").click()
    page.fill("[name=reason]", "too late")
    stack.manage("rebalance", MODEL, "prefill=2", "decode=4", "--reason", "meanwhile", timeout_s=120)
    until(lambda: roles(stack) == (2, 4), what="the other change")
    confirm(page)
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("has changed since", timeout=SLOW_MS)
    page.keyboard.press("Escape")
    banner = page.locator("#stale")
    expect(banner).to_contain_text("This page was old")
    expect(banner).to_contain_text("meanwhile")
    expect(banner).to_contain_text("prefill 3, decode 3 → prefill 2, decode 4")
    assert roles(stack) == (2, 4)


def test_a_viewer_sees_everything_and_who_may_change_it(stack: Stack, at: Callable[..., Page]) -> None:
    page = at(f"/models/{MODEL}/rebalance", "guest")
    button = page.get_by_role("button", name="Start run")
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "Needs the role operator")
    page.goto(f"{stack.console_url}/operations")
    undo = page.locator("#list").get_by_role("button", name="Undo").first
    expect(undo).to_be_disabled()
    expect(undo).to_have_attribute("title", "Needs the role operator")
    page.goto(stack.console_url)
    page.locator("[data-model] .seg input[value=monolithic]").click()
    expect(page.get_by_role("dialog")).to_contain_text("set_mode needs the role operator", timeout=SLOW_MS)
    page.fill("[name=reason]", "I would like to")
    expect(page.get_by_role("dialog").get_by_role("button", name="Change the mode")).to_be_disabled()
    token = page.locator("[name=csrfmiddlewaretoken]").first.get_attribute("value") or ""
    body: dict[str, Any] = {"sizes": {"prefill": 4}, "version": 1, "reason": "by hand"}
    url = f"{stack.console_url}/models/{MODEL}/rebalance/start"
    headers = {"X-CSRFToken": token, "Origin": stack.console_url}
    assert page.request.post(url, data=body, headers=headers).status == 403
    assert page.request.post(url, data=body).status == 403  # without the token nobody gets that far


def test_a_mode_is_changed_after_its_plan_and_a_reason_and_an_engine_is_held(stack: Stack, at: Callable[..., Page]) -> None:
    page = at("/")
    band = page.locator(f'[data-model="{MODEL}"]')
    band.locator(".seg input[value=conditional]").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the routing table to Conditional", timeout=SLOW_MS)
    assert stack.model(MODEL).mode == "disaggregated"
    page.fill("[name=tokens]", "300")
    page.fill("[name=reason]", "short prompts")
    dialog.get_by_role("button", name="Change the mode").click()
    outcome(page, re.compile("step"))
    expect(page.locator("#changed")).to_contain_text("Disaggregated → Conditional")
    served = stack.model(MODEL)
    assert (served.mode, served.conditional.min_uncached_tokens) == ("conditional", 300)
    page.goto(stack.console_url)
    expect(band.locator(".seg input[value=conditional]")).to_be_checked(timeout=SLOW_MS)  # its rows are a second behind
    page.locator("body").press("m")
    expect(dialog).to_contain_text("Change the thresholds", timeout=SLOW_MS)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    band.locator('[data-role="decode"] button.tile').first.click()
    expect(dialog).to_contain_text("It leaves the routing table", timeout=SLOW_MS)
    page.fill("[name=reason]", "look at it")
    dialog.get_by_role("button", name="Do it").click()
    outcome(page, "1 step done")
    page.goto(f"{stack.console_url}/operations?verb=drain_engine")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    page.keyboard.press("u")
    page.fill("[name=reason]", "seen")
    page.keyboard.press("Enter")
    outcome(page, "1 step done")

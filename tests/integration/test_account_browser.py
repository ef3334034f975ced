"""The pages of signing in, of one's account, of keys and of grants in a real browser, in both themes and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from controlplane.access import sessions
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.keys import add_key, rotate_key
from controlplane.control.newkey import NewKey
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from tests.console_visitors import CHROMIUM, PASSWORD, SLOW_MS, chromium, complaints_of
from tests.console_web import Web
from tests.integration.access_kit import code_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
    ),
]
PICTURES = os.environ.get("PICTURES_OF_TESTS", "")
"""A folder for pictures of what the tests see; empty: none are taken."""
STICKS_OUT = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    ["the page", ...document.querySelectorAll("*")]
    .map((each) => each.getBoundingClientRect?.().right > innerWidth ? each.outerHTML.slice(0, 80) : "")"""
WINDOWS = (("dark", 1440, 900), ("light", 1440, 900), ("dark", 390, 844))


@pytest.fixture
def web(valkey_url: str, db: None) -> Iterator[Web]:
    """A console that an admin and a key are known to."""
    admin = User.objects.create_user("ada", password=PASSWORD)
    admin.groups.add(Group.objects.get_or_create(name="admin")[0])
    root = Actor("root", "admin")
    add_key(root, NewKey("web-1", "search", requests_per_minute=600, days=90))
    rotate_key(root, "web-1", overlap_hours=24)
    models.Model.objects.create(name="org/llama-3.1-70b", source="org/m", config={}, engine_kind="simulated", team="search")
    for name, until in (("vic", timezone.now() + timedelta(days=7)), ("vera", None)):
        User.objects.create_user(name)
        actions.grant_model(root, "org/llama-3.1-70b", name, until=until, reason="on call while the team is away")
    found = Web(free_port(), {"TWINPOOL_SECOND_FACTOR": "admins"})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def browser(web: Web) -> Iterator[Browser]:
    """After all rows: Django asks no database while Playwright's loop runs."""
    with chromium() as browser:
        yield browser


def looked_at(page: Page, name: str) -> None:
    """No serious fault of accessibility, nothing that sticks out, in each theme and on a phone."""
    for theme, width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        found = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        assert not found, f"{name} {theme} {width}: {[(each['id'], each['nodes'][0]['html'][:200]) for each in found]}"
        assert page.evaluate(STICKS_OUT) == [], f"{name} {theme} {width}: sticks out"
        if PICTURES:
            page.screenshot(path=str(Path(PICTURES) / f"{name}-{theme}-{width}.png"), full_page=True)
    page.set_viewport_size({"width": 1440, "height": 900})


def sign_in_was_long_ago() -> None:
    """In a thread of its own, as Playwright has this one's."""
    for row in Session.objects.all():
        kept = sessions.stored(row.session_key)
        kept[sessions.PROVED] = 1
        kept.save()
    connection.close()


def test_an_admin_sets_up_a_second_factor_and_makes_tokens_and_keys(browser: Browser, web: Web) -> None:
    page = browser.new_context(locale="en-GB").new_page()
    page.set_default_timeout(SLOW_MS)
    complaints: list[Any] = complaints_of(page)
    page.goto(f"{web.url}/login?next=/account")
    looked_at(page, "login")
    page.fill("[name=username]", "ada")
    page.fill("[name=password]", PASSWORD)
    page.press("[name=password]", "Enter")
    expect(page.locator("h1")).to_have_text("Set up a second factor")
    expect(page.locator("svg.qr")).to_be_visible()
    looked_at(page, "factor")
    secret = page.locator("output.secret").inner_text()
    page.fill("[name=code]", code_of(secret))
    page.press("[name=code]", "Enter")
    expect(page.locator(".codes li")).to_have_count(10)
    looked_at(page, "codes")
    page.click("text=I have kept them")
    page.wait_for_url("**/account")
    page.fill("form[action='/account/tokens'] [name=name]", "pipeline")
    page.click("text=Make a token")
    expect(page.locator("output.secret")).to_contain_text("tp-")
    looked_at(page, "account")
    page.goto(f"{web.url}/keys")
    page.fill("form[action='/keys/add'] [name=name]", "web-2")
    page.fill("form[action='/keys/add'] [name=team]", "search")
    page.click("text=Make a key")
    expect(page.locator("output.secret")).to_contain_text("sk-")
    looked_at(page, "keys")
    page.click("button[aria-label='Rotate web-2']")
    expect(page.locator("output.secret")).to_contain_text("sk-")
    page.goto(f"{web.url}/grants")
    page.fill("form[action='/grants/give'] [name=model]", "org/llama-3.1-70b")
    page.fill("form[action='/grants/give'] [name=user]", "ada")
    page.fill("form[action='/grants/give'] [name=days]", "3")
    page.fill("form[action='/grants/give'] [name=reason]", "to try")
    page.click("button:text-is('Give')")
    expect(page.locator("[role=status] .say")).to_have_text("ada may change org/llama-3.1-70b now.")
    page.click("button[aria-label='Take back: vic, org/llama-3.1-70b']")
    expect(page.locator("td:text-is('vic')")).to_have_count(0)
    looked_at(page, "grants")
    page.click("button[aria-label='Undo: vic, org/llama-3.1-70b']")
    expect(page.locator("td:text-is('vic')")).to_have_count(1)
    assert complaints == []
    with ThreadPoolExecutor() as apart:
        apart.submit(sign_in_was_long_ago).result()
    page.click("text=ada")
    page.click("text=Your account")
    page.fill("form[action='/account/tokens'] [name=name]", "later")
    page.click("text=Make a token")
    expect(page.locator("h1")).to_have_text("Is it you?")
    looked_at(page, "proof")
    page.fill("[name=proof_password]", PASSWORD)
    page.fill("[name=proof_code]", code_of(secret, 1))
    page.press("[name=proof_code]", "Enter")
    expect(page.locator("output.secret")).to_contain_text("tp-")
    page.context.clear_cookies()
    page.goto(f"{web.url}/login")
    page.fill("[name=username]", "ada")
    page.fill("[name=password]", PASSWORD)
    page.press("[name=password]", "Enter")
    page.fill("[name=code]", "000000")
    page.press("[name=code]", "Enter")
    expect(page.locator("[role=alert]")).to_have_text("That code is wrong, or was used already.")
    looked_at(page, "code")
    page.context.close()

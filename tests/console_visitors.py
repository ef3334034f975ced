"""Visitors of a running console in Debian's chromium, for acceptance tests and benchmarks. Needs no Django."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PASSWORD = "correct horse battery staple"
SLOW_MS = 90_000
"""For waits on a starved machine."""
SHOW_NEXT = """() => {
    const next = [...document.querySelectorAll(".skeleton")].find((each) => each.checkVisibility());
    next?.scrollIntoView();
    return next?.closest("[id]")?.id ?? (next ? "a part" : "");
}"""
"""Charts load when they are seen: scrolls to the first part that still waits and names where it is."""


def make_people(roles: dict[str, str]) -> str:
    """A program for `manage.py shell -c` that makes a user with PASSWORD of each name and role."""
    return f"""
from django.contrib.auth.models import Group, User
for name, role in {roles!r}.items():
    User.objects.create_user(name, password={PASSWORD!r}).groups.add(Group.objects.get_or_create(name=role)[0])
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def signed_in(
    browser: Browser, url: str, name: str, theme: str = "dark", width: int = 1440, height: int = 900, **options: Any
) -> BrowserContext:
    """A context whose pages are that person's, in that theme (light or dark) and window."""
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, locale="en-GB", timezone_id="Europe/Berlin", **options)  # type: ignore[arg-type]
    context.set_default_timeout(SLOW_MS)
    context.add_cookies([{"name": "theme", "value": theme, "url": url}])
    page = context.new_page()
    page.goto(f"{url}/login")
    page.fill("[name=username]", name)
    page.fill("[name=password]", PASSWORD)
    page.press("[name=password]", "Enter")
    page.wait_for_url(lambda at: "/login" not in at)
    page.close()
    return context


def complaints_of(page: Page) -> list[str]:
    """Grows by what the browser complains about from now on: errors and warnings of scripts, refused content."""
    found: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and found.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    return found


def painted(page: Page) -> None:
    """Waits until nothing of the page is still loading, also what it loads only when it is scrolled to."""
    live = page.locator("#live")
    if live.count():
        expect(live).to_have_text(re.compile(r"^\s*live"), timeout=SLOW_MS)
    deadline = time.monotonic() + SLOW_MS / 1000
    while waiting := page.evaluate(SHOW_NEXT):
        assert time.monotonic() < deadline, f"{page.url}: still loading: {waiting}"
        page.wait_for_timeout(200)
    page.wait_for_load_state("networkidle")
    page.evaluate("scrollTo(0, 0)")


def places(engine: str, operation: int, model: str) -> dict[str, str]:
    """Every page of the console by name, each with its address."""
    return {
        "fleet": "/",
        "model": f"/models/{model}",
        "rebalance": f"/models/{model}/rebalance",
        "requests": "/requests",
        "advisor": "/advisor",
        "nodes": "/nodes",
        "engine": f"/engines/{engine}",
        "operations": "/operations",
        "operation": f"/operations/{operation}",
        "proposals": "/proposals",
        "planner": f"/models/{model}/planner",
        "alerts": "/alerts",
        "costs": "/costs",
        "audit": "/audit",
        "find": "/find?q=P",
        "account": "/account",
        "keys": "/keys",
        "grants": "/grants",
        "join_tokens": "/nodes/tokens",
    }

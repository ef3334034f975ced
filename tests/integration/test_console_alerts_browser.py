"""The alerts page in a real browser: what fires is live, it is silenced, a rule is set and a channel made and tried."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from redis.asyncio import Redis

from controlplane.fleet.models import Model
from controlplane.stack.ports import free_port
from controlplane.telemetry.fleet_view import firing_alerts
from controlplane.telemetry.live_rows import alerts_row
from controlplane.telemetry.publish import Publisher
from tests.console_visitors import CHROMIUM, PASSWORD, chromium
from tests.console_web import Web
from tests.integration.alert_kit import Hooks, firing, hooks
from tests.integration.test_console_browser import HOSTILE, login

ROOT = Path(__file__).parents[2]
INSIDE = {"TWINPOOL_WEBHOOK_NETWORKS": "127.0.0.0/8"}
DELIVER = (
    "import django; django.setup()",
    "from controlplane.control.alerting.deliver import deliver_due",
    "print(deliver_due('test'))",
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs Debian's chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[list[dict[str, Any]]]:
    """Users, and what fired and fires, before the browser starts; what ingest would publish of it."""
    with django_db_blocker.unblock():
        for name, role in (("ops-1", "admin"), ("eve", "viewer")):
            User.objects.create_user(name, password=PASSWORD).groups.add(Group.objects.get_or_create(name=role)[0])
        Model.objects.create(name="llama", source="x", config={}, engine_kind="simulated")
        ago = timezone.now() - timedelta(hours=3)
        over = {"state": "resolved", "fired_at": ago, "resolved_at": timezone.now(), "reason": "good again"}
        firing("transfer_p99", "model:llama", "llama", label="model llama", severity="warn", value=210.0, peak=840.0,
               threshold=500.0, **over)  # fmt: skip
        facts = {"serving": 0, "desired": 2, "role": "decode"}
        firing("pool_empty", "pool:llama/decode", "llama", label="llama decode", facts=facts)
        firing("stranded_kv", "engine:e1", "llama", label=HOSTILE[:180], severity="warn", value=0.3, threshold=0.05)
        published = [asdict(alerts_row(firing_alerts())), *map(asdict, firing_alerts())]
    yield published
    with django_db_blocker.unblock():
        connection.ops.execute_sql_flush([])  # whole: the application may not delete from the audit


@pytest.fixture(scope="module")
def web(rows: Any, valkey_url: str) -> Iterator[Web]:
    web = Web(free_port(), INSIDE)
    web.start()
    yield web
    web.stop()


@pytest.fixture(scope="module")
def browser(rows: Any) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@dataclass
class Live:
    """What ingest does: publishes the rows twice a second."""

    url: str
    rows: list[dict[str, Any]]
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with Redis.from_url(self.url) as valkey:
            publisher = Publisher(valkey)
            while not self.over.is_set():
                await publisher.publish({"alerts": self.rows}, time.time())
                await asyncio.sleep(0.5)


@pytest.fixture
def live(valkey: redis.Redis, valkey_url: str, rows: list[dict[str, Any]]) -> Iterator[Live]:
    live = Live(valkey_url, rows)
    thread = threading.Thread(target=live.run)
    thread.start()
    yield live
    live.over.set()
    thread.join(10)


@pytest.fixture
def hook() -> Iterator[Hooks]:
    with hooks() as found:
        yield found


def opened(
    browser: Browser, web: Web, name: str = "ops-1", theme: str = "dark", width: int = 1440
) -> tuple[Page, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, locale="en-GB", timezone_id="Asia/Bangkok")
    context.add_cookies([{"name": "theme", "value": theme, "url": web.url}])
    page, complaints = context.new_page(), []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{web.url}/alerts")
    login(page, name)
    expect(page.locator("#firing tbody tr")).to_have_count(2)
    return page, complaints


def say_why(page: Page, confirm: str) -> None:
    page.locator("dialog.ask input[name=reason]").fill("on purpose")
    page.locator("dialog.ask .ask-end").get_by_role("button", name=confirm, exact=True).click()


def test_what_fires_is_shown_worst_first_and_leaves_when_it_is_over(browser: Browser, web: Web, live: Live) -> None:
    page, complaints = opened(browser, web)
    first, second = page.locator("#firing tbody tr").all()
    expect(first).to_contain_text("A pool has too few engines")
    expect(first).to_contain_text("0 of 2 engines take work")
    expect(first).to_contain_text("at least 1")
    expect(second).to_contain_text("KV is stranded")
    assert page.title() == "Alerts · Twinpool", "names are text, whatever is in them"
    badge = page.locator(".nav [data-alerts]")
    expect(badge).to_have_attribute("data-count", "2")
    expect(page.locator("#over tbody")).to_contain_text("840 ms")
    live.rows = [live.rows[0] | {"firing": 1, "critical": 0}, live.rows[1]]
    expect(badge).to_have_attribute("data-count", "1")
    expect(page.locator("#firing tbody tr")).to_have_count(1)
    live.rows = [live.rows[0] | {"firing": 0}]
    expect(page.locator("#firing-none")).to_be_visible()
    assert badge.get_attribute("data-count") is None
    assert complaints == []


def test_an_alert_is_silenced_a_rule_set_and_a_channel_made_and_tried(
    browser: Browser, web: Web, live: Live, hook: Hooks
) -> None:
    page, complaints = opened(browser, web)
    page.locator("#firing tbody tr").first.get_by_role("button").click()
    page.locator("dialog.ask select[name=scope]").select_option("model")
    say_why(page, "Silence")
    expect(page.locator("#silences tbody")).to_contain_text("ops-1 · on purpose")
    page.get_by_role("button", name="End the silence of llama").click()
    say_why(page, "End it")
    expect(page.locator("#silences-none")).to_be_visible()

    page.get_by_role("button", name="Change KV transfers are slow").click()
    page.locator("dialog.ask input[name=threshold]").fill("250")
    say_why(page, "Set")
    expect(page.locator("#rules tbody")).to_contain_text("limit 250 ms")
    page.get_by_role("button", name="Set KV is stranded for one model").click()
    page.locator("dialog.ask input[name=threshold]").fill("200")
    say_why(page, "Set")
    expect(page.locator("dialog.ask .reasons")).to_contain_text("threshold: 0 to 1")
    page.locator("dialog.ask input[name=threshold]").fill("20")
    page.locator("dialog.ask .ask-end button.primary").click()
    expect(page.locator("#rules .of-model")).to_contain_text("llama")

    page.get_by_role("button", name="Add a channel").first.click()
    page.locator("dialog.ask input[name=name]").fill("pager")
    page.locator("dialog.ask input[name=target]").fill("http://169.254.169.254/s3cret-path")
    say_why(page, "Add")
    expect(page.locator("dialog.ask .reasons")).to_contain_text("is not public")
    page.locator("dialog.ask input[name=target]").fill(hook.url)
    page.locator("dialog.ask .ask-end button.primary").click()
    expect(page.locator("code.secret")).to_contain_text("whsec_")
    page.get_by_role("button", name="I have stored it").click()
    channel = page.locator('[data-channel="pager"]')
    expect(channel).to_contain_text("http://127.0.0.1")
    page.reload()
    assert "s3cret-path" not in page.content() and "whsec_" not in page.content()
    channel.get_by_role("button", name="Test pager").click()
    expect(channel).to_contain_text("on its way")
    command = [sys.executable, "-c", "\n".join(DELIVER)]
    sent = subprocess.run(command, cwd=ROOT, env={**os.environ, **INSIDE}, capture_output=True, text=True, check=True)
    assert sent.stdout.strip() == "1", sent.stderr
    expect(channel).to_contain_text("last told", timeout=40_000)
    assert len(hook.received) == 1
    page.get_by_role("button", name="Remove pager").click()
    say_why(page, "Remove")
    expect(page.locator("#channels-none")).to_be_visible()
    assert [text for text in complaints if "422" not in text] == []


def test_a_viewer_sees_all_and_changes_nothing(browser: Browser, web: Web, live: Live) -> None:
    page, complaints = opened(browser, web, "eve", "light", 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#firing tbody tr").first.get_by_role("button").bounding_box()
    assert box and box["x"] + box["width"] <= 390, "what can be done is in reach"
    for button in page.locator("#firing button, #rules button, [data-add-channel]").all():
        expect(button).to_be_disabled()
        assert "Needs the role" in (button.get_attribute("title") or "")
    page.locator("#firing a.what").first.click()
    expect(page.locator("#chosen-body")).to_contain_text("Nobody: it was silenced, or no channel asks for it.")
    assert complaints == []

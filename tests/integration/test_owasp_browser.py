"""Markup in every name and reason, on every page; and the page of the API's description. In a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from playwright.sync_api import Browser, expect

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.models import Proposal
from controlplane.fleet import models
from controlplane.stack.ports import free_port
from tests.console_visitors import chromium, complaints_of, places, signed_in
from tests.console_web import Web
from tests.integration.alert_kit import firing
from tests.integration.control_rows import fleet
from tests.integration.planner_rows import proposal
from tests.integration.test_console_browser import pytestmark
from tests.integration.test_owasp import person

__all__ = ["pytestmark"]
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>'\"&amp;{{7*7}}"
SHOWN_MS = 300


@pytest.fixture(scope="module")
def addresses(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, str]]:
    """Rows are written before the browser starts, whose loop runs in this thread."""
    with django_db_blocker.unblock():
        person("root", "admin").teams.add(models.Team.objects.create(name="t"))
        found = write_everywhere()
    yield found
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)


@pytest.fixture(scope="module")
def web(addresses: dict[str, str], valkey_url: str) -> Iterator[Web]:
    web = Web(free_port())
    web.start()
    yield web
    web.stop()


@pytest.fixture(scope="module")
def browser(web: Web) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def fill(rows: Any, *names: str) -> None:
    """MARKUP in these columns, as much of it as each takes."""
    columns = {name: rows.model._meta.get_field(name).max_length for name in names}
    rows.update(**{name: MARKUP[:most] for name, most in columns.items()})


def write_everywhere() -> dict[str, str]:
    """MARKUP as every name and reason that a page shows. Returns the pages by name."""
    row = fleet("disaggregated", prefill=2, decode=2)
    operation = actions.rebalance(Actor(MARKUP[:150], "admin"), "m", {"prefill": 1, "decode": 3}, reason=MARKUP)
    asked = proposal(row)
    fill(Proposal.objects.all(), "title", "decision")
    fill(models.Model.objects.all(), "team", "frozen_reason", "source")
    models.Model.objects.update(aliases=[MARKUP])
    fill(models.Engine.objects.all(), "reason", "url")
    models.Node.objects.update(labels={MARKUP[:63]: MARKUP})
    fill(models.Node.objects.all(), "address")
    fill(models.Gpu.objects.all(), "kind")
    fill(models.Step.objects.all(), "reason")
    fill(models.Operation.objects.filter(pk=operation.pk), "outcome")
    models.Team.objects.create(name=MARKUP[:63])
    models.InferenceKey.objects.create(name=MARKUP[:63], team=MARKUP[:63], sha256="0" * 64, model_names=[MARKUP[:128]])
    user = User.objects.create_user(MARKUP[:150])
    models.Grant.objects.create(model=row, user=user, given_by=MARKUP[:150], reason=MARKUP)
    models.AuditEntry.objects.create(actor=MARKUP[:150], verb=MARKUP[:32], subject=MARKUP[:255], reason=MARKUP)
    firing(label=MARKUP[:128], subject=f"pool:{MARKUP}"[:200])
    found = places("m-1", operation.pk, "m")
    return {**found, "find": "/find?q=%3Cimg", "account": "/account", "keys": "/keys", "proposal": f"/proposals/{asked.pk}"}


def test_no_name_runs_as_a_script_on_any_page(web: Web, browser: Browser, addresses: dict[str, str]) -> None:
    shown = 0
    with signed_in(browser, web.url, "root") as context:
        page = context.new_page()
        page.on("dialog", lambda dialog: pytest.fail(f"{page.url}: {dialog.message}"))
        for name, address in addresses.items():
            answer = page.goto(web.url + address, wait_until="load")
            assert answer and answer.ok, (name, answer and answer.status)
            page.wait_for_timeout(SHOWN_MS)
            assert page.title() != "owned", name
            assert page.locator("img[src=x]").count() == 0, name
            shown += "<img src=x" in page.locator("body").inner_text()
    assert shown >= 5, "pages that show it as what it is"


def test_the_description_of_the_api_is_read_and_tried_without_anything_from_elsewhere(web: Web, browser: Browser) -> None:
    asked: list[str] = []
    with signed_in(browser, web.url, "root") as context:
        page = context.new_page()
        complaints = complaints_of(page)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{web.url}/api/docs/")
        operation = page.locator("#operations-models-get_model")
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("button", name="Try it out").click()
        operation.get_by_placeholder("name").fill("m")
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    assert all(each.startswith((web.url, "data:", "blob:")) for each in asked)
    assert not complaints

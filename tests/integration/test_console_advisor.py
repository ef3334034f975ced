"""The advisor's page: a form that the address fills, whatever stands in it, and what REST says to the page's own session."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.api.bodies_advisor import AdvisorBody
from controlplane.console import advisor
from controlplane.core.advisor_checks import all_checks
from controlplane.core.advisor_types import Measured, Situation
from controlplane.physics.catalog import config_names
from tests.integration.test_console_changes import signed_in

pytestmark = pytest.mark.django_db
SCRIPT = Path(__file__).parents[2] / "static" / "js" / "adviceview.js"


class Form(HTMLParser):
    """Values of the form's fields as a browser has them at first."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.asked = False
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name = found.get("name") or ""
        if tag == "form" and found.get("id") == "ask":
            self.asked = "data-asked" in found
        elif tag in ("select", "textarea"):
            self._inside = name
            self.values.setdefault(name, "")
        elif tag == "option" and "selected" in found:
            self._option = found.get("value")
            self.values[self._inside] = self._option or ""
            self._text = self._option is None
        elif tag == "input" and (found.get("type") != "radio" or "checked" in found):
            self.values[name] = found.get("value") or ""

    _text = False

    def handle_data(self, data: str) -> None:
        if self._inside == "config" or self._text:
            self.values[self._inside] += data
        self._text = False

    def handle_endtag(self, tag: str) -> None:
        if tag in ("select", "textarea"):
            self._inside = ""


@pytest.fixture
def viewer(db: None) -> Client:
    return signed_in("look", "viewer")


def form(client: Client, **query: str) -> Form:
    page = client.get(reverse("advisor"), query)
    assert page.status_code == 200
    return Form(page.content.decode())


def test_only_who_is_signed_in_sees_it_and_it_stands_in_the_bar(viewer: Client) -> None:
    assert Client().get(reverse("advisor")).status_code == 302
    page = viewer.get(reverse("advisor")).content.decode()
    assert re.search(r'<a href="/advisor" data-go="a" aria-current="page">Advisor</a>', page)
    assert 'src="/static/js/advisor.js"' in page and "/static/js/adviceview.js" in page
    assert "Nothing asked yet" in page
    assert viewer.post(reverse("advisor")).status_code == 405


def test_without_an_address_the_defaults_stand_there_and_nothing_is_asked(viewer: Client) -> None:
    shown = form(viewer)
    assert not shown.asked
    assert {name: shown.values[name] for name in advisor.DEFAULTS} == dict(advisor.DEFAULTS)


def test_the_address_holds_the_inputs(viewer: Client) -> None:
    config = '{"architectures": ["LlamaForCausalLM"], "note": "</textarea><script>alert(1)</script>"}'
    given = {
        "model": "own",
        "config": config,
        "gpu": "h200-sxm",
        "gpus": "8",
        "prefill_gpu": "h100-sxm",
        "decode_gpu": "",
        "network_gbps": "25",
        "transport": "tcp",
        "traffic": "trace",
        "input_tokens": "12000",
        "output_tokens": "300",
        "prefix_hit": "20",
        "slo_ttft_ms": "900",
        "slo_itl_ms": "30",
        "kv_dtype": "fp8",
    }
    shown = form(viewer, **given)
    assert shown.asked and {name: shown.values[name] for name in given} == given


@pytest.mark.parametrize(
    "name, value",
    [
        ("model", "../../etc/passwd"),
        ("model", ""),
        ("gpu", "<b>"),
        ("transport", "udp"),
        ("traffic", "both"),
        ("kv_dtype", "int1"),
        ("gpus", "9" * 41),
        ("input_tokens", " "),
        ("config", "x" * (advisor.MAX_LINK + 1)),
    ],
)
def test_what_is_no_choice_or_absurdly_long_in_the_address_is_the_default(viewer: Client, name: str, value: str) -> None:
    assert form(viewer, **{name: value}).values[name] == advisor.DEFAULTS[name]


def test_markup_in_the_address_stays_text(viewer: Client) -> None:
    page = viewer.get(reverse("advisor"), {"gpus": '"><script>x</script>', "slo_itl_ms": "<img src=x>"}).content.decode()
    assert "<script>x" not in page and "<img src=x" not in page


def test_it_offers_every_model_and_speaks_vietnamese(viewer: Client) -> None:
    page = viewer.get(reverse("advisor"), headers={"accept-language": "vi"}).content.decode()
    assert all(f'<option value="{name}"' in page for name in config_names())
    assert "Chưa hỏi gì" in page and "config.json riêng" in page
    assert 'max="4096"' in page, "numbers of fields are not written in the viewer's way"


def test_the_page_asks_for_nothing_that_rest_does_not_know(viewer: Client) -> None:
    fields = set(AdvisorBody().fields)
    assert set(advisor.DEFAULTS) - {"traffic"} <= fields


def test_a_session_asks_with_its_csrf_token_only(db: None) -> None:
    client = signed_in("kim", "viewer", enforce_csrf_checks=True)
    page = client.get(reverse("advisor")).content.decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found
    body = {"model": "qwen3-8b", "gpu": "h100-sxm", "gpus": 16, "network_gbps": 400, "seeds": 0}
    body |= {"input_tokens": 2000, "output_tokens": 200}

    def ask(**headers: str) -> Any:
        return client.post("/api/v1/advisor", json.dumps(body), "application/json", headers=headers)

    assert ask().status_code == 403
    answer = ask(**{"x-csrftoken": found[1]})
    deadline = time.monotonic() + 240
    while answer.status_code == 202:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        answer = client.get(answer.headers["Location"])
    assert answer.status_code == 200 and len(answer.json()["advice"]["checks"]) == 6


def test_the_page_names_checks_and_thresholds_as_the_advisor_does() -> None:
    given = Measured(1.0)
    checks = all_checks(Situation(given, given, given, given, given, gpus=8, network_gbps=100))
    script = SCRIPT.read_text(encoding="utf-8")
    titles, limits = (_words(script, name) for name in ("TITLES", "LIMITS"))
    assert titles == {check.name: check.title for check in checks}
    assert limits == {check.name: check.threshold_text for check in checks}


def _words(script: str, name: str) -> dict[str, str]:
    found = re.search(rf"const {name} = {{(.*?)\n}};", script, re.DOTALL)
    assert found
    return dict(re.findall(r'(\w+): (?:gettext\()?"([^"]+)"', found[1]))

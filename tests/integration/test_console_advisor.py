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
from controlplane.console import advicefill, advisor
from controlplane.core.advisor_checks import all_checks
from controlplane.core.advisor_types import Measured, Situation
from controlplane.core.gpus import GPUS
from controlplane.fleet.models import GpuPrice, Model
from controlplane.physics.catalog import config_names
from controlplane.physics.traces import trace_of
from tests.integration.control_rows import fleet
from tests.integration.planner_rows import request, traffic
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
        "price": "1.25",
        "prefill_price": "2",
        "rate": "12.5",
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
    of_page_alone = {"traffic", "of", "price", "prefill_price", "decode_price"}
    assert set(advisor.DEFAULTS) - of_page_alone <= fields


def first_of(client: Client) -> dict[str, Any]:
    page = client.get(reverse("advisor")).content.decode()
    found: dict[str, Any] = json.loads(page.split('<script id="first" type="application/json">')[1].split("</script>")[0])
    return found


def test_prices_are_those_of_the_price_book_and_a_guess_is_called_one(viewer: Client) -> None:
    GpuPrice.objects.create(kind="h100-sxm", per_hour="2.60", terms="owned", valid_from="2026-01-01T00:00Z")
    prices = first_of(viewer)["prices"]
    assert prices["h100-sxm"] == {"per_hour": 2.6, "guess": False} and prices["l4"]["guess"]
    assert set(GPUS) <= set(prices)


def test_what_bytes_per_token_are_made_of_is_told_where_it_is_a_product(viewer: Client) -> None:
    shapes = first_of(viewer)["shapes"]
    assert set(shapes) == set(config_names())
    assert shapes["llama-3.1-70b"] == {"layers": 80, "kv_heads": 8, "head_dim": 128, "element_bytes": 2}
    assert shapes["deepseek-v3"] is None


def test_a_model_of_the_fleet_fills_the_form_with_its_config_gpus_targets_and_traffic(viewer: Client) -> None:
    model = fleet("disaggregated", prefill=2, decode=2)
    Model.objects.filter(pk=model.pk).update(slo_ttft_ms=900.0, engine_args={"kv_cache_dtype": "fp8_e4m3"})
    traffic(time.time(), 5.0, prompt=3000, output=150)
    shown = form(viewer, model="m")
    assert shown.asked and shown.values["config"] == ""
    wanted = {"model": "qwen3-8b", "gpu": "l4", "gpus": "4", "transport": "rdma", "traffic": "model", "of": "m"}
    wanted |= {"input_tokens": "3000", "output_tokens": "150", "prefix_hit": "0", "slo_ttft_ms": "900", "kv_dtype": "fp8"}
    assert {name: shown.values[name] for name in wanted} == wanted
    assert float(shown.values["rate"]) == pytest.approx(5.0, rel=0.1)
    lines = viewer.get(reverse("data_traffic", args=["m"])).content.decode()
    arrivals = trace_of(lines).arrivals
    assert {(each.prompt_tokens, each.output_tokens) for each in arrivals} == {(3000, 150)} and len(arrivals) > 100
    Model.objects.update(config=model.config | {"num_hidden_layers": 7})
    own = form(viewer, model="m").values
    assert own["model"] == "own" and json.loads(own["config"])["num_hidden_layers"] == 7


def test_a_model_without_traffic_fills_all_but_the_lengths_and_an_unknown_one_nothing(viewer: Client) -> None:
    fleet("monolithic", mixed=2)
    shown = form(viewer, model="m")
    assert (shown.values["traffic"], shown.values["input_tokens"], shown.values["gpus"]) == ("lengths", "4096", "2")
    assert viewer.get(reverse("data_traffic", args=["m"])).content == b""
    assert form(viewer, model="nobody").values["model"] == "llama-3.1-70b"
    assert form(viewer, traffic="model", of="nobody").values["traffic"] == "lengths"
    assert viewer.get(reverse("data_traffic", args=["nobody"])).status_code == 404
    assert Client().get(reverse("data_traffic", args=["m"])).status_code == 401


def test_a_catalogue_model_of_the_same_name_is_meant_as_soon_as_anything_else_is_asked(viewer: Client) -> None:
    fleet("monolithic", "llama-3.1-8b", mixed=2)
    assert form(viewer, model="llama-3.1-8b").values["model"] == "qwen3-8b", "whose config it has"
    assert form(viewer, model="llama-3.1-8b", gpus="16").values["model"] == "llama-3.1-8b"


def test_requests_that_stand_for_others_are_as_many_in_the_trace_as_they_were() -> None:
    now = time.time()
    for number in range(90):
        request("m", now - 600 + number, 100, 10, weight=10)
    for number in range(100):
        request("m", now - 300 + number, 8000, 500)
    lines = advicefill.trace(advicefill.recorded("m", now)).splitlines()
    long = sum(json.loads(line)["prompt_tokens"] == 8000 for line in lines)
    assert len(lines) == 190 and long == pytest.approx(19, abs=1), "a tenth, as of all requests"


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

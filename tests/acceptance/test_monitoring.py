"""The pages of a running stack's processes for Prometheus, and what leans on their names: the document and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from stack import ROOT, Stack, until

from controlplane.stack.ports import free_port
from tests.metrics_pages import Page

pytestmark = pytest.mark.timeout(240)
DASHBOARD = ROOT / "deploy" / "grafana" / "twinpool.json"
QUESTION = {"model": "llama-3.1-70b", "prompt": "a" * 3000, "max_tokens": 4}


@pytest.fixture(scope="module")
def pages(demo: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Page]]:
    """By process, after a request; the indexer is not a part of the demonstration and runs beside it."""
    assert demo.ask("completions", QUESTION).status == 200
    listens = f"127.0.0.1:{free_port()}"
    where = ("--socket", str(tmp_path_factory.mktemp("i") / "s"), "--events", f"tcp://127.0.0.1:{free_port()}")
    indexer = subprocess.Popen([sys.executable, "-m", "controlplane.indexer", *where, "--metrics", listens], cwd=ROOT)
    try:
        urls = {each["name"]: each["metrics_url"] for each in demo.status()["processes"] if each["metrics_url"]}
        urls["indexer"] = f"http://{listens}/metrics"
        yield {name: until(lambda url=url: read(url), what=f"the page of {name}") for name, url in urls.items()}
    finally:
        indexer.kill()
        indexer.wait()


def read(url: str) -> Page:
    answer = httpx.get(url)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Page(answer.content)


def names_of(pages: dict[str, Page]) -> set[str]:
    return {name for page in pages.values() for name in page.names}


def families_of(pages: dict[str, Page]) -> set[str]:
    """As a document lists them: a counter by its name with _total, a histogram once."""
    found = {(family.name, family.type) for page in pages.values() for family in page.families}
    return {f"{name}_total" if kind == "counter" else name for name, kind in found}


def test_every_process_has_a_page_that_tells_of_its_work(pages: dict[str, Page]) -> None:
    assert {"web", "router", "control", "ingest", "agent-n1", "agent-n2", "agent-n3", "indexer"} == set(pages)
    assert pages["router"].total("twinpool_router_requests_total") >= 1
    assert pages["control"].value("twinpool_control_ticks_total", result="done") > 0
    assert pages["control"].total("twinpool_engines") == 8
    assert pages["ingest"].value("twinpool_ingest_records_total", result="accepted") > 0
    assert sum(pages[f"agent-n{number}"].value("twinpool_agent_engines", state="ready") for number in (1, 2, 3)) == 8
    assert pages["web"].total("twinpool_web_answer_seconds_count") > 0
    assert pages["indexer"].value("twinpool_indexer_routers") == 0


def test_live_figures_are_on_the_page_of_ingest(demo: Stack) -> None:
    url = next(each["metrics_url"] for each in demo.status()["processes"] if each["name"] == "ingest")
    until(lambda: read(url).get("twinpool_gpus", state="fresh") == 24, what="all GPUs are on the page")
    assert read(url).names >= {"twinpool_model_ttft_5m_seconds", "twinpool_effective_gpus"}


def test_prometheus_finds_the_processes_by_file_and_the_engines_by_http(demo: Stack, pages: dict[str, Page]) -> None:
    listed = json.loads((demo.state / "metrics.json").read_text())
    shown = {urlsplit(each["metrics_url"]).netloc for each in demo.status()["processes"] if each["metrics_url"]}
    assert {target for entry in listed for target in entry["targets"]} == shown
    assert {entry["labels"]["node"] for entry in listed if entry["labels"]["process"] == "agent"} == {"n1", "n2", "n3"}
    engines = httpx.get(f"{demo.console_url}/metrics/engines").json()
    assert len(engines) == 8
    assert "vllm:num_requests_running" in httpx.get(f"http://{engines[0]['targets'][0]}/metrics").text


def test_every_series_is_explained_and_nothing_else_is(pages: dict[str, Page]) -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    series = text[text.index("## Series") : text.index("## Traces of requests")]
    rows = [line.split("|")[1] for line in series.splitlines() if line.startswith("| `")]
    explained = {name for cell in rows for name in re.findall(r"`([a-z0-9_]+)`", cell)}
    optional = {"twinpool_router_indexer_total"}  # of a router that asks an indexer
    assert explained - optional == families_of(pages)


def expressions(value: Any) -> Iterator[str]:
    """Every query of a dashboard."""
    if isinstance(value, dict):
        if isinstance(value.get("expr"), str):
            yield value["expr"]
        yield from (each for item in value.values() for each in expressions(item))
    elif isinstance(value, list):
        yield from (each for item in value for each in expressions(item))


def test_the_dashboard_asks_only_for_series_that_exist(pages: dict[str, Page]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = list(expressions(dashboard["panels"]))
    assert len(queries) > 50 and dashboard["uid"] == "twinpool"
    queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"\b(?:twinpool|process|vllm)[a-z0-9_:]*_[a-z0-9_]+", query)}
    assert asked <= names_of(pages), asked - names_of(pages)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in dashboard["panels"] if panel["type"] != "row")


def test_labels_that_the_dashboard_filters_by_exist(pages: dict[str, Page]) -> None:
    """A filter on a label that no series has finds nothing, for ever and without a word."""
    known: dict[str, set[str]] = {}
    for page in pages.values():
        for name, labels in page.samples:
            known.setdefault(name, set()).update(label for label, _ in labels)
    for query in expressions(json.loads(DASHBOARD.read_text())["panels"]):
        for name, filters in re.findall(r"\b((?:twinpool|process)_[a-z0-9_]+)\{([^}]*)\}", query):
            asked = set(re.findall(r"(\w+)=", filters))
            assert name not in known or asked <= known[name], (query, known[name])

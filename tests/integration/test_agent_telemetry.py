"""What an agent sends each second, and how it keeps logs small, with a real agent and engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import redis

from controlplane.core import names
from controlplane.core.codec import decode
from controlplane.core.protocol import VERSION, EngineRow, GpuRow, NodeRow, Record
from controlplane.core.signing import BadSignature, unseal
from controlplane.stack.ports import free_port
from tests.integration.agent_kit import AgentKit, until
from tests.metrics_pages import Page


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def agent(valkey_url: str, tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[AgentKit]:
    kit = AgentKit(valkey_url, tmp_path_factory.mktemp("agent"))
    try:
        options = ("--log-limit-bytes", "100000", "--label", "zone=a", "--network-gbps", "400")
        kit.start(*options, "--metrics-port", str(port))
        kit.run_engine(gpus=(0, 1))
        yield kit
    finally:
        kit.close()


def newest(agent: AgentKit, kind: str) -> Record:
    found: Record = until(
        f"sending {kind}", lambda: next((each for each in reversed(agent.records()) if each.kind == kind), None)
    )
    return found


def test_every_record_is_numbered_without_a_hole(agent: AgentKit) -> None:
    until("some records", lambda: len(agent.records()) > 6)
    records = agent.records()
    assert {(each.v, each.source, each.boot) for each in records} == {(VERSION, f"agent:{agent.node}", records[0].boot)}
    assert [each.seq for each in records] == list(range(1, len(records) + 1))


def test_an_engines_figures_are_sent_as_it_told_them(agent: AgentKit) -> None:
    row = decode(EngineRow, newest(agent, "engine").rows[0])
    assert (row.engine, row.model, row.incarnation, row.state) == ("e-1", "m", 1, "ready")
    assert (row.running, row.waiting, row.kv_usage, row.counters) == (0, 0, 0.25, {"generation_tokens": 7.0})
    assert (row.histograms["ttft"].bounds, row.histograms["ttft"].counts, row.histograms["ttft"].count) == (
        (0.1,),
        (1.0,),
        2.0,
    )


def test_every_gpu_has_a_row_with_its_engines_own_report(agent: AgentKit) -> None:
    newest(agent, "engine")
    rows = [decode(GpuRow, row) for row in newest(agent, "gpu").rows]
    assert [(row.engine, row.tensor, row.tensor_peak, row.dram, row.memory_used_bytes, row.power_w) for row in rows] == [
        ("e-1", 0.5, 0.9, 0.25, 10**9, 350.0),
        ("e-1", 0.5, 0.9, 0.25, 10**9, 350.0),
        ("", 0.0, 0.0, 0.0, 0, None),
        ("", 0.0, 0.0, 0.0, 0, None),
    ]


def test_the_node_is_described(agent: AgentKit) -> None:
    row = decode(NodeRow, newest(agent, "node").rows[0])
    assert row.node == agent.node and row.dropped == 0
    assert row.cpu is not None and 0 <= row.cpu <= 1
    assert row.memory_used_bytes and row.memory_total_bytes and row.memory_used_bytes < row.memory_total_bytes
    assert row.disk_free_bytes


def test_prometheus_is_told_engines_gpus_and_how_well_they_are_watched(agent: AgentKit, port: int) -> None:
    def page() -> Page:
        return Page(httpx.get(f"http://127.0.0.1:{port}/metrics").content)

    until("scraping", lambda: page().get("twinpool_agent_scrapes_total", result="done") > 1)
    told = page()
    gpu = {"gpu": agent.fact().gpus[0].uuid, "index": "0", "kind": "h100-sxm"}
    assert told.value("twinpool_agent_engines", state="ready") == 1
    assert told.value("twinpool_agent_engines", state="failed") == 0
    assert told.value("twinpool_agent_engine_events_total", event="ready") == 1
    assert told.value("twinpool_agent_commands_total", result="done") >= 1
    assert told.value("twinpool_gpu_tensor_activity_ratio", engine="e-1", **gpu) == 0.5
    assert told.value("twinpool_gpu_power_watts", engine="e-1", **gpu) == 350
    assert told.value("twinpool_engine_kv_usage_ratio", engine="e-1", model="m") == 0.25
    assert told.value("twinpool_agent_records_total", result="sent") > 0
    assert told.value("twinpool_agent_sample_seconds_count") > 0
    # The third GPU is spare and its power is not known: not 0.
    assert told.get("twinpool_gpu_power_watts", gpu=agent.fact().gpus[2].uuid, index="2", kind="h100-sxm", engine="") == 0
    assert sum(name == "twinpool_gpu_power_watts" for name, _ in told.samples) == 2


def test_the_fact_describes_the_node_rises_and_is_signed(agent: AgentKit, valkey_url: str) -> None:
    fact = agent.fact()
    assert (fact.labels, fact.network_gbps, fact.address, len(fact.gpus)) == ({"zone": "a"}, 400.0, "127.0.0.1", 4)
    until("rising", lambda: agent.fact().seq > fact.seq)
    client = redis.Redis.from_url(valkey_url)
    key = names.fact_key("agent", agent.node)
    assert 0 < client.ttl(key) <= names.FACT_TTL_S
    with pytest.raises(BadSignature):
        unseal(b"x" * 32, client.get(key))  # type: ignore[arg-type]
    client.close()


def test_changes_are_announced_and_load_is_not(agent: AgentKit, valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    with client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(names.FACT_CHANNEL)

        def heard() -> bool:
            message = listener.get_message(timeout=0.2)
            return bool(message and message["data"] == f"agent:{agent.node}".encode())

        agent.run_engine("e-3", gpus=(3,))
        until("heard", heard)
        until("all was told", lambda: not heard())
        fact = agent.fact()
        until("scraped on", lambda: agent.fact().seq > fact.seq + 2)
        assert not heard(), "a fact without news was announced"
    client.close()


def test_a_chattering_engine_keeps_a_bounded_log_whose_tail_can_be_read(agent: AgentKit) -> None:
    agent.run_engine("e-2", gpus=(2,), chatter=True)
    log = agent.state / "logs" / "e-2.0.1.log"
    until("rotated", lambda: log.with_name("e-2.0.1.log.1").exists())
    until("small again", lambda: log.stat().st_size < 100_000)
    lines = agent.ask("tail_log", engine="e-2", lines=3)["lines"]
    assert len(lines) == 3 and lines[0].startswith("chatter chatter")

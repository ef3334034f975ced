"""The ingest process on real PostgreSQL and Valkey: what it stores, what it publishes, and what it survives."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgpack
import psutil
import psycopg
import pytest
import redis
from django.db import connection
from psycopg import sql

from controlplane.core import names
from controlplane.core.protocol import GpuRow, NodeRow, RouterRow
from controlplane.core.sketches import Sketch
from controlplane.fleet.models import Engine, Gpu, Model, Node, Operation, Pool, Rank, Reservation, TableState
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.testing import StartedValkey
from controlplane.telemetry import fleet_view, stream
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.intake import Intake, Refusals, position_time
from controlplane.telemetry.keeper import Keeper
from controlplane.telemetry.testing import Source, engine_row, histogram, request_row
from controlplane.telemetry.upkeep import Upkeep
from tests.integration.ingest_kit import ROOT, WITHIN_S, Ingest, until
from tests.metrics_pages import Page


@pytest.fixture
def ingest(transactional_db: None, valkey: redis.Redis, tmp_path: Path) -> Iterator[Ingest]:
    process = Ingest(tmp_path / "ingest.log")
    yield process
    process.kill()


@pytest.fixture
def fleet(transactional_db: None) -> dict[str, Any]:
    """One node, four GPUs; a disaggregated model with a prefill and a decode engine of one GPU; two GPUs spare."""
    node = Node.objects.create(name="n1", address="10.0.0.1")
    gpus = [Gpu.objects.create(uuid=f"g{i}", node=node, index=i, kind="h100-sxm", memory_bytes=80 << 30) for i in range(4)]
    model = Model.objects.create(
        name="llama", source="llama", config={}, engine_kind="simulated", mode="disaggregated", slo_ttft_ms=1000
    )
    for number, role in enumerate(("prefill", "decode"), start=1):
        Pool.objects.create(model=model, role=role, desired_engines=1)
        engine = Engine.objects.create(
            id=f"e-{role}", model=model, role=role, number=number, kind="simulated", state="ready", incarnation=1
        )
        rank = Rank.objects.create(engine=engine, node=node)
        Reservation.objects.create(gpu=gpus[number - 1], rank=rank)
    Operation.objects.create(verb="scale", model=model, actor="admin", reason="more load")
    TableState.objects.create(pk=1, epoch=0, generation=42)
    return {"node": node, "model": model}


class Fleet:
    """Sends what the fleet above would, second by second."""

    def __init__(self, valkey: redis.Redis) -> None:
        self.agent = Source(valkey, "agent:n1")
        self.router = Source(valkey, "router:r1")
        self.tokens = 1000.0
        self.transfers: list[float] = []
        self.requests = 0

    def second(self, at: float | None = None) -> None:
        """Both GPUs at 0.5; 10 tokens decoded; one transfer of 50 ms; one request."""
        self.tokens += 10
        self.requests += 1
        self.transfers.append(0.05)
        gpus = [
            GpuRow("g0", "e-prefill", tensor=0.5, dram=0.1, power_w=300.0),
            GpuRow("g1", "e-decode", tensor=0.05, dram=0.5),
            GpuRow("g2", tensor=0.0, dram=0.0),
            GpuRow("g3", tensor=0.0, dram=0.0),
        ]
        engines = [
            engine_row("e-prefill", "llama", waiting=2, counters={"generation_tokens": self.tokens / 10}),
            engine_row(
                "e-decode",
                "llama",
                counters={"generation_tokens": self.tokens, "transfer_bytes": self.tokens * 1e6},
                histograms={"transfer": histogram(self.transfers)},
            ),
        ]
        self.agent.send("gpu", gpus, at)
        self.agent.send("engine", engines, at)
        self.agent.send("node", [NodeRow("n1", cpu=0.2, memory_used_bytes=10, memory_total_bytes=100)], at)
        self.router.send("router", [RouterRow("r1", 0, self.requests, 0, 0, 0)], at)
        self.router.send("request", [request_row(f"r{self.requests}", "llama", (at or time.time()) - 1)], at)

    def history(self, seconds: int, end: float) -> None:
        for second in range(seconds):
            self.second(end - seconds + second)


def live(valkey: redis.Redis, topic: str = "fleet") -> dict[str, dict[str, Any]]:
    """The rows of a topic by id."""
    rows = valkey.hget(names.live_key(topic), "rows")
    return {row["id"]: row for row in json.loads(rows)} if rows else {}


def ask(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def one(query: str, *values: Any) -> Any:
    return ask(query, *values)[0][0]


def test_a_stream_becomes_rows_and_live_topics(ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis) -> None:
    sender = Fleet(valkey)
    end = (time.time() // 60) * 60 - 5
    sender.history(200, end)
    page = f"127.0.0.1:{free_port()}"
    ingest.start(**{names.ENV_METRICS: page})
    rows = until(lambda: live(valkey))
    sender.second()

    row = until(lambda: live(valkey)["fleet"] if live(valkey)["fleet"]["gpus"] == 4 else None)
    assert (row["gpus_stale"], row["spare_gpus"], row["table_generation"], row["gaps"]) == (0, 2, 42, 0)
    assert row["ttft"]["p99"] == pytest.approx(100, rel=0.01)
    assert (row["ttft_model"], row["ttft_slo_ms"]) == ("llama", 1000)
    assert row["itl"]["p50"] == pytest.approx(20, rel=0.01)
    assert row["transfer"]["count"] == pytest.approx(200, abs=1)
    assert len(row["spark"]["requests_per_s"]) == 40
    assert {"model:llama", "engine:e-prefill", "engine:e-decode", "node:n1"} < rows.keys()

    def fresh_model() -> Any:
        """A starved machine takes longer than samples stay fresh: then one more second is told."""
        found = live(valkey, "model:llama").get("model:llama")
        if found and found["pools"]["prefill"]["running"] is None:
            sender.second()
            time.sleep(1)
            return None
        return found

    model = until(fresh_model)
    assert model["pools"]["prefill"] | {"tensor": 0, "dram": 0} == {
        "engines": 1, "ready": 1, "desired": 1, "gpus": 1, "tensor": 0, "dram": 0, "waiting": 2, "running": 1
    }  # fmt: skip
    assert sum(model["transfer_histogram"]) == pytest.approx(sender.requests, abs=2)
    engine = until(lambda: live(valkey)["engine:e-decode"])
    assert (engine["label"], engine["node"], engine["gpu_uuids"], engine["dram"]) == ("D2", "n1", ["g1"], [0.5])
    operation = next(row for id, row in live(valkey).items() if id.startswith("operation:"))
    assert (operation["verb"], operation["model"], operation["steps_total"]) == ("scale", "llama", 0)

    until(lambda: one("SELECT count(*) FROM telemetry_node_second") >= 200)
    assert ask("SELECT roles, tensor, cpu FROM telemetry_node_second ORDER BY at LIMIT 1") == [
        (["p", "d", "", ""], [0.5, pytest.approx(0.05), 0.0, 0.0], pytest.approx(0.2))
    ]
    whole = datetime.fromtimestamp(end + 5 - 120, UTC)
    until(lambda: one("SELECT count(*) FROM telemetry_pool_minute WHERE at = %s AND model = 'llama'", whole) == 2)
    pool = ask("SELECT generation_tokens, busy_seconds, gpus, transfer_ms FROM telemetry_pool_minute "
               "WHERE at = %s AND role = 'decode'", whole)  # fmt: skip
    assert pool[0][:3] == (600, pytest.approx(30), 1)
    assert Sketch.from_bytes(pool[0][3]).count == 60
    assert one("SELECT ok FROM telemetry_model_minute WHERE at = %s", whole) == 60
    assert one("SELECT busy FROM telemetry_gpu_minute WHERE uuid = 'g0' AND at = %s", whole) == pytest.approx(0.5)
    tens = one("SELECT sum(generation_tokens) FROM telemetry_engine_10s WHERE engine = 'e-decode' AND at >= %s AND at < %s",
               whole, whole + timedelta(minutes=1))  # fmt: skip
    assert tens == 600
    until(lambda: one("SELECT count(*) FROM telemetry_request") == sender.requests)
    told = Page(httpx.get(f"http://{page}/metrics").content)
    assert told.value("twinpool_ingest_records_total", result="accepted") == sender.agent.seq + sender.router.seq
    assert told.value("twinpool_ingest_records_total", result="missing") == 0
    assert told.value("twinpool_ingest_rows_total", result="written") >= 200 + sender.requests
    assert told.value("twinpool_ingest_partitions_total", result="failed") == 0
    assert told.value("twinpool_ingest_storing") == 1
    assert 0 <= told.value("twinpool_ingest_lag_seconds", side="stored") < 60
    assert told.value("twinpool_model_ttft_5m_seconds", model="llama", percentile="p99") == pytest.approx(0.1, rel=0.01)
    for table in ("node_second", "engine_10s", "pool_minute", "model_minute", "gpu_minute", "request"):
        name = sql.Identifier(f"telemetry_{table}_default")
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(name))
            assert cursor.fetchone() == (0,)

    Operation.objects.all().delete()
    Engine.objects.all().delete()
    fleet["model"].delete()
    until(lambda: valkey.hget(names.live_key("model:llama"), "rows") == b"[]")
    assert valkey.ttl(names.live_key("model:llama")) > 0
    assert "model:llama" not in live(valkey)
    memory = psutil.Process(ingest.process.pid).memory_full_info().pss  # type: ignore[union-attr]
    assert memory < 135 << 20


def stored_to() -> tuple[int, ...]:
    """The stream id up to which rows are stored, as numbers."""
    found = ask("SELECT last_id FROM telemetry_position WHERE stream = %s", names.TELEMETRY_STREAM)
    return tuple(map(int, found[0][0].split("-"))) if found else (0,)


def has_gone_beyond(place: tuple[int, ...]) -> bool:
    return stored_to() > place


def test_killed_again_and_again_it_stores_every_second_once(
    ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis
) -> None:
    sender = Fleet(valkey)
    end = (time.time() // 60) * 60 - 60
    sender.history(150, end)
    seconds = iter(range(60))
    for _ in range(3):
        before = stored_to()
        ingest.start()
        until(partial(has_gone_beyond, before))
        ingest.kill()
        for second in itertools.islice(seconds, 20):
            sender.second(end + second * 0.9)
    ingest.start()
    sender.second()

    until(lambda: one("SELECT count(*) FROM telemetry_request") == sender.requests)
    after = datetime.fromtimestamp(end + 30, UTC)
    until(lambda: one("SELECT max(at) FROM telemetry_engine_10s") >= after)
    start, stop = datetime.fromtimestamp(end - 120, UTC), datetime.fromtimestamp(end, UTC)
    assert one("SELECT count(*) FROM telemetry_node_second WHERE at >= %s AND at < %s", start, stop) == 120
    tokens = "SELECT sum(generation_tokens) FROM {} WHERE at >= %s AND at < %s AND role = 'decode'"
    assert one(tokens.format("telemetry_engine_10s"), start, stop) == 1200
    assert one(tokens.format("telemetry_pool_minute"), start, stop) == 1200
    assert one("SELECT sum(ok) FROM telemetry_model_minute WHERE at >= %s AND at < %s", start, stop) == 120
    assert one("SELECT count(DISTINCT id) FROM telemetry_request") == sender.requests


def test_what_the_live_side_reads_again_after_a_restart_is_not_counted_again(
    fleet: dict[str, Any], valkey: redis.Redis
) -> None:
    """It begins ten minutes back, who stores two minutes: one may be long done with what the other still brings."""
    sender = Fleet(valkey)
    end = (time.time() // 60) * 60 - 200
    sender.history(150, end)
    buffer, upkeep = Buffer(), Upkeep(threading.Event())
    upkeep.view = fleet_view.read()
    keeper = Keeper(buffer, Refusals(), threading.Event(), upkeep)
    follower, position = Intake(Refusals()), "0-0"
    keeper.tick()
    for second in range(100):
        sender.second(end + second)
        if entries := stream.read_page(valkey, position)[:30]:
            position = entries[-1][0]
            buffer.put(follower.take(entries).samples, position, position_time(position))
        if second % 3 == 0:
            keeper.tick()
    while entries := stream.read_page(valkey, position):
        position = entries[-1][0]
        buffer.put(follower.take(entries).samples, position, position_time(position))
    buffer.put([], position, end + 200)
    for _ in range(2):
        keeper.tick()

    assert one("SELECT count(*) FROM telemetry_request") == sender.requests == 250
    assert one("SELECT sum(ok) FROM telemetry_model_minute") == 250
    assert one("SELECT sum(samples) FROM telemetry_gpu_minute") == 4 * 250
    assert one("SELECT sum(samples) FROM telemetry_engine_10s") == 2 * 250
    assert one("SELECT count(*) FROM telemetry_node_second") == 250


def test_without_postgresql_live_rows_go_on_and_the_stream_keeps_the_rest(
    ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis, postgres: EmbeddedPostgres
) -> None:
    sender = Fleet(valkey)
    ingest.start()
    sender.second()
    until(lambda: live(valkey) and one("SELECT count(*) FROM telemetry_request") == 1)
    connection.close()
    with psycopg.connect(postgres.urls.admin.rsplit("/", 1)[0] + "/postgres", autocommit=True) as admin:
        admin.execute("ALTER DATABASE twinpool WITH ALLOW_CONNECTIONS false")
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'twinpool'")
            until(lambda: "not stored for now" in ingest.said)
            sender.second()
            until(lambda: live(valkey)["fleet"]["ttft"]["count"] == sender.requests)
        finally:
            admin.execute("ALTER DATABASE twinpool WITH ALLOW_CONNECTIONS true")
    until(lambda: one("SELECT count(*) FROM telemetry_request") == sender.requests)
    assert "stored again" in ingest.said


def test_what_a_crash_of_postgresql_took_with_it_is_stored_again(
    ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis, postgres: EmbeddedPostgres
) -> None:
    """The writer does not wait for the server's disk, so the last transactions may be gone, with their positions."""
    sender = Fleet(valkey)
    end = time.time() - 20
    sender.history(30, end)
    ingest.start()
    until(lambda: one("SELECT count(*) FROM telemetry_request") == 30)
    before = ask("SELECT last_id, at FROM telemetry_position")[0]
    for second in range(10):
        sender.second(end + second)
    until(lambda: one("SELECT count(*) FROM telemetry_node_second") >= 35)
    until(lambda: one("SELECT count(*) FROM telemetry_request") == 40)
    connection.close()
    with psycopg.connect(postgres.urls.admin.rsplit("/", 1)[0] + "/twinpool") as crash:
        crash.execute("LOCK TABLE telemetry_position IN ACCESS EXCLUSIVE MODE")
        crash.execute("DELETE FROM telemetry_request WHERE id IN ('r31', 'r35', 'r40')")
        crash.execute("DELETE FROM telemetry_node_second WHERE at >= %s", [datetime.fromtimestamp(end, UTC)])
        crash.execute("UPDATE telemetry_position SET last_id = %s, at = %s", before)
        crash.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'twinpool' AND pid <> pg_backend_pid()"
        )
    sender.second()
    until(lambda: one("SELECT count(*) FROM telemetry_request") == 41)
    until(lambda: one("SELECT count(*) FROM telemetry_node_second") >= 39)
    assert "stored again" in ingest.said


def test_when_valkey_comes_back_ingest_goes_on(ingest: Ingest, fleet: dict[str, Any], tmp_path: Path) -> None:
    own = StartedValkey(tmp_path / "valkey", free_port(), "secret-of-this-test")
    with (tmp_path / "valkey.log").open("ab") as log:
        own.start(log)
        try:
            ingest.start(**{names.ENV_VALKEY_URL: own.url})
            client = redis.Redis.from_url(own.url)
            sender = Fleet(client)
            sender.second()
            until(lambda: live(client))
            before = int(client.hget(names.live_key("fleet"), "seq"))
            os.kill(own.pid, signal.SIGKILL)
            until(lambda: "cannot be" in ingest.said)
            own.start(log)
            until(lambda: int(client.hget(names.live_key("fleet"), "seq") or 0) > before)
            sender.second()
            until(lambda: one("SELECT count(*) FROM telemetry_request") == 2)
            client.close()
        finally:
            own.stop()


def test_keys_of_ours_that_hold_something_else_are_replaced(
    ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis
) -> None:
    valkey.set(names.TELEMETRY_STREAM, "no stream")
    valkey.lpush(names.live_key("fleet"), "no hash")
    topic = names.live_key(f"model:{Model.objects.get().name}")
    valkey.hset(topic, "seq", "no number")
    ingest.start()
    until(lambda: not valkey.exists(names.TELEMETRY_STREAM))
    Source(valkey, "agent:n1").send("node", [NodeRow("n1")])
    until(lambda: valkey.type(names.live_key("fleet")) == b"hash" and valkey.hget(topic, "rows"))
    assert live(valkey)
    assert ingest.said.count("something else was stored under") == 3


def test_records_that_break_the_contract_are_dropped_and_the_rest_is_kept(
    ingest: Ingest, fleet: dict[str, Any], valkey: redis.Redis
) -> None:
    sender = Fleet(valkey)
    liar = Source(valkey, "router:liar")
    for raw in (b"", b"\xc1", b"\x93\x01\x02\x03", msgpack.packb({"v": 99}), msgpack.packb([[[[1]]]] * 9), os.urandom(2000)):
        liar.send_raw(raw)
    valkey.xadd(names.TELEMETRY_STREAM, {"other": b"field"})
    valkey.hset(b"live:\xff\n no topic", "seq", 1)
    liar.send("request", [request_row("nul\x00", "llama", time.time())])
    liar.send("request", [request_row("x", "llama", time.time(), retries=10**9)])
    liar.send("gpu", [GpuRow("g0", tensor=0.5)])
    sender.agent.send("gpu", [GpuRow("g0", tensor=17.0)])
    sender.agent.send("engine", [engine_row("e-decode", "llama", counters={"requests": -1.0})])
    ingest.start()
    sender.second()
    until(lambda: one("SELECT count(*) FROM telemetry_request") == 1)
    row = until(lambda: live(valkey).get("fleet"))
    assert row["requests_per_s"] is not None
    assert ingest.said.count("refused, more of its") == 3
    assert "nul" not in ingest.said


def test_the_fleet_is_read_in_a_fixed_number_of_queries(fleet: dict[str, Any], django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(fleet_view.QUERIES):
        view = fleet_view.read()
    assert [engine.label for engine in view.engines.values()] == ["P1", "D2"]
    assert view.role_of("e-prefill") == "prefill"


def test_an_error_nobody_foresaw_in_a_thread_ends_the_process(
    transactional_db: None, valkey: redis.Redis, tmp_path: Path
) -> None:
    broken = """
import django; django.setup()
from controlplane.telemetry import fleet_view
from django.core.management import execute_from_command_line
reads = iter([fleet_view.read])
fleet_view.read = lambda: next(reads, lambda: 1 / 0)()
execute_from_command_line(["manage.py", "ingest"])
"""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    command = [sys.executable, "-c", broken]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=WITHIN_S)
    assert ended.returncode not in (0, -signal.SIGTERM)
    assert b"ZeroDivisionError" in ended.stderr
    assert b"the thread that reads the fleet has died" in ended.stderr

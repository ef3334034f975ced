"""The heat map of the past, and what the writer makes of rows: again, refused, and before their partition is there."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from controlplane.config import Config
from controlplane.core.protocol import GpuRow
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.queries import heat as heats
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rollups import Rollups
from controlplane.telemetry.tables import GPU_MINUTE, NODE_SECOND, REQUEST, Batch, moment
from controlplane.telemetry.testing import request_row
from controlplane.telemetry.view import EngineView, FleetView
from controlplane.telemetry.writer import OtherPosition, Writer, last_position

pytestmark = pytest.mark.django_db
NOW = 1_796_018_425.0
PREFILL = EngineView("e1", "P1", "llama", "prefill", "ready", 0.0, "", 1, ("n1",), ())
DECODE = EngineView("e1", "D1", "llama", "decode", "ready", 0.0, "", 1, ("n1",), ())


def view(engine: EngineView) -> FleetView:
    return FleetView(engines={"e1": engine})


def sample(at: float, kind: Any, *rows: Any, source: str = "agent:n1") -> Sample[Any]:
    return Sample(f"{int(at * 1000)}-0", at, at, source, kind, rows)


def write(rollups: Rollups, until: float = NOW) -> Writer:
    writer = Writer(Partitions(keep(Config())))
    rollups.advance(until)
    writer.write(rollups.closed(), f"{int(until * 1000)}-0", until)
    return writer


def ask(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def test_heat_shows_each_gpu_with_the_role_it_had_and_gaps_as_gaps() -> None:
    rollups = Rollups()
    start = (int(NOW // 50) - 3) * 50
    for second in range(start, start + 50):
        rollups.consume(sample(second, "gpu", GpuRow("g0", "e1", tensor=0.8, dram=0.1), GpuRow("g1")), view(PREFILL))
    for second in range(start + 100, start + 150):
        changed = view(PREFILL if second < start + 110 else DECODE)
        rollups.consume(sample(second, "gpu", GpuRow("g0", "e1", tensor=0.1, dram=0.6)), changed)
    write(rollups, NOW + 60)
    heat = heats.gpu_heat(NOW, span_s=200)
    assert heat.starts == [start, start + 50, start + 100, start + 150]
    first, spare = heat.gpus
    assert (first.uuid, first.node, first.roles) == ("g0", "n1", ["prefill", None, "decode", None])
    assert first.busy == [pytest.approx(0.8), None, pytest.approx(0.6), None]
    assert (spare.roles, spare.busy) == (["", None, None, None], [None] * 4)


def test_the_same_samples_again_make_the_same_rows() -> None:
    for _ in range(2):
        rollups = Rollups()
        for second in range(70):
            at = NOW - 100 + second
            rollups.consume(sample(at, "gpu", GpuRow("g0", "e1", tensor=0.5)), view(PREFILL))
            rollups.consume(sample(at, "request", request_row(f"r{second}", "llama", at), source="router:r1"), view(PREFILL))
        write(rollups)
    counts = {table.name: ask(f"SELECT count(*) FROM {table.name}")[0][0] for table in (NODE_SECOND, GPU_MINUTE, REQUEST)}
    assert counts == {"telemetry_node_second": 70, "telemetry_gpu_minute": 2, "telemetry_request": 70}
    assert last_position() == f"{int(NOW * 1000)}-0"


HARD_TEXTS = ["null", "NULL", "", 'a"b', "a\\b", "a,b", "{a}", " a ", "tab\tline\nend", "\x1f\x7f", "Hà Nội 🙂"]


def test_lists_come_back_as_they_were_written() -> None:
    batch = Batch()
    numbers = [0.5, None, 0.0, 1.0, 1e-9]
    values = dict.fromkeys(NODE_SECOND.columns) | {
        "node": "n1",
        "at": moment(NOW),
        "gpus": HARD_TEXTS,
        "engines": [""],
        "roles": [],
        "tensor": numbers,
        "tensor_peak": [],
        "dram": [None],
        "memory_used_bytes": [80 << 30, None],
        "power_w": [700.0],
    }
    batch.add(NODE_SECOND, values)
    Writer(Partitions(keep(Config()))).write(batch, "5-0", NOW)
    found = ask("SELECT gpus, engines, roles, tensor, dram, memory_used_bytes FROM telemetry_node_second")
    assert found == [(HARD_TEXTS, [""], [], pytest.approx(numbers), [None], [80 << 30, None])]


def test_a_row_that_the_database_refuses_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    batch = Batch()
    good = dict.fromkeys(GPU_MINUTE.columns, None) | {"node": "n1", "engine": "", "role": "", "samples": 60}
    for number in range(20):
        samples = 10**6 if number == 13 else 60
        batch.add(GPU_MINUTE, good | {"uuid": f"g{number}", "at": moment(NOW), "samples": samples})
    writer = Writer(Partitions(keep(Config())))
    with caplog.at_level(logging.ERROR):
        writer.write(batch, "5-0", NOW)
    assert ask("SELECT count(*) FROM telemetry_gpu_minute") == [(19,)]
    assert (writer.counts["written"], writer.counts["refused"]) == (19, 1)
    assert len(caplog.records) == 1


def test_nothing_is_written_after_a_position_that_is_not_there_any_more() -> None:
    """A server that crashed may have lost the last transactions, and a new connection to it looks like the old one."""
    batch = Batch()
    batch.add(GPU_MINUTE, dict.fromkeys(GPU_MINUTE.columns) | {"uuid": "g", "at": moment(NOW), "node": "n1", "engine": "",
                                                                "role": "", "samples": 60})  # fmt: skip
    writer = Writer(Partitions(keep(Config())))
    with pytest.raises(OtherPosition):
        writer.write(batch, "6-0", NOW, "5-0")
    writer.write(Batch(), "5-0", NOW)
    with pytest.raises(OtherPosition):
        writer.write(batch, "7-0", NOW, "6-0")
    assert (ask("SELECT count(*) FROM telemetry_gpu_minute"), last_position()) == ([(0,)], "5-0")
    writer.write(batch, "7-0", NOW, "5-0")
    assert (ask("SELECT count(*) FROM telemetry_gpu_minute"), last_position()) == ([(1,)], "7-0")


def test_a_partition_that_cannot_be_made_now_costs_no_row(
    postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """A long query reads the default partition, so its rows cannot move; it may not keep new ones away either."""
    rollups = Rollups()
    rollups.consume(sample(NOW + 1, "gpu", GpuRow("g0", tensor=0.5)), FleetView())
    with psycopg.connect(postgres.urls.app) as reader:
        reader.execute("SELECT count(*) FROM telemetry_node_second_default")
        write(rollups, NOW + 5)
    assert ask("SELECT count(*) FROM telemetry_node_second_default") == [(1,)]
    assert "not up to date" in caplog.text
    rollups.consume(sample(NOW + 6, "gpu", GpuRow("g0", tensor=0.5)), FleetView())
    write(rollups, NOW + 10)
    assert ask("SELECT count(*) FROM telemetry_node_second_default") == [(0,)]
    assert ask("SELECT count(*) FROM telemetry_node_second") == [(2,)]


def test_upkeep_makes_the_partitions_of_now_and_next_and_drops_old_ones() -> None:
    old = moment(NOW) - timedelta(days=400)
    ask("SELECT telemetry_ensure_partition('telemetry_node_second', %s)", old)
    Partitions(keep(Config())).maintain(NOW)
    names = [name for (name,) in ask("SELECT name FROM telemetry_partitions('telemetry_node_second') ORDER BY starts")]
    assert names == ["telemetry_node_second_20261130t0600", "telemetry_node_second_20261130t0615"]
    assert len(ask("SELECT name FROM telemetry_partitions('telemetry_pool_minute')")) == 2

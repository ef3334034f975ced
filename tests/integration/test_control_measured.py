"""The 15 minutes before and after a change, from the telemetry tables, kept with the operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from controlplane.config import Config
from controlplane.control import actions
from controlplane.control.measured import measure_finished
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.core.protocol import GpuRow
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from controlplane.telemetry.partitions import Partitions, keep
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rollups import Rollups
from controlplane.telemetry.tables import moment
from controlplane.telemetry.testing import request_row
from controlplane.telemetry.view import EngineView, FleetView
from controlplane.telemetry.writer import Writer
from tests.integration.control_kit import ANN

pytestmark = pytest.mark.django_db
BEGUN = 1_796_018_400.0
"""On a whole minute."""
ENDED = BEGUN + 120
CONFIG = json.loads((CONFIGS / "qwen3-8b.json").read_text())


@pytest.fixture
def operation() -> models.Operation:
    """A finished rebalance of a model with one engine on an L4."""
    node = models.Node.objects.create(name="n1", seen_at="2026-01-01T00:00:00Z")
    models.Gpu.objects.create(uuid="g0", node=node, index=0, kind="l4", memory_bytes=1)
    pools = (NewPool("prefill", 0), NewPool("decode", 0))
    actions.register_model(ANN, NewModel("m", "org/m", CONFIG, "simulated", mode="disaggregated", pools=pools))
    model = models.Model.objects.get(name="m")
    models.Engine.objects.create(id="e1", model=model, role="decode", number=1, kind="simulated", state="ready")
    models.Pool.objects.update(floor=0)
    models.Engine.objects.filter(id="e1").update(wanted=False)
    row = actions.rebalance(ANN, "m", {"decode": 1})
    models.Operation.objects.filter(pk=row.pk).update(created_at=moment(BEGUN), finished_at=moment(ENDED), state="done")
    return row


def record(until: float, samples: Iterator[tuple[float, str, Any]]) -> None:
    view = FleetView(engines={"e1": EngineView("e1", "D1", "m", "decode", "ready", 0.0, "", 1, ("n1",), ())})
    rollups = Rollups()
    for at, kind, row in samples:
        rollups.consume(Sample(f"{int(at * 1000)}-0", at, at, "agent:n1", kind, (row,)), view)
    rollups.advance(until)
    Writer(Partitions(keep(Config()))).write(rollups.closed(), f"{int(until * 1000)}-0", until)


def traffic(since: float, minutes: int, ttft_ms: float, tensor: float | None) -> Iterator[tuple[float, str, Any]]:
    """A busy GPU, and four requests a minute."""
    for second in range(minutes * 60):
        at = since + second
        yield at, "gpu", GpuRow("g0", "e1", tensor=tensor, dram=tensor)
        if second % 15 == 7:
            yield at, "request", request_row(f"r{at}", "m", at - 1, ttft_ms=ttft_ms, prompt_tokens=900, output_tokens=100)


def measured(operation: models.Operation, minutes_later: float) -> dict[str, Any]:
    measure_finished(moment(ENDED) + timedelta(minutes=minutes_later))
    operation.refresh_from_db()
    return dict(operation.measured)


def test_both_sides_are_measured_once_their_time_has_passed(operation: models.Operation) -> None:
    record(BEGUN + 10, traffic(BEGUN - 900, 15, 200.0, 0.5))
    record(ENDED + 910, traffic(ENDED, 15, 100.0, 0.25))
    assert measured(operation, 16) == {}
    found = measured(operation, 17)
    before, after = found["before"], found["after"]
    assert found["span_s"] == 900
    assert before["ttft_ms"]["p99"] == pytest.approx(200, rel=0.02) and after["ttft_ms"]["p50"] == pytest.approx(
        100, rel=0.02
    )
    assert before["itl_ms"]["samples"] == after["itl_ms"]["samples"] > 0
    assert before["effective_gpus"] == pytest.approx(0.5) and after["effective_gpus"] == pytest.approx(0.25)
    assert before["gpus"] == after["gpus"] == 1
    assert before["requests"] == after["requests"] == 60 and before["tokens"] == 60_000
    # An L4 at 0.7 $/h for 15 minutes made 60,000 tokens.
    assert before["cost_per_million_tokens"] == pytest.approx(0.7 / 4 / 0.06)
    assert before["gaps"] == after["gaps"] == []


def test_what_was_not_recorded_is_said_and_never_nought(operation: models.Operation) -> None:
    record(BEGUN + 10, traffic(BEGUN - 300, 5, 200.0, None))
    found = measured(operation, 17)
    assert found["before"]["effective_gpus"] is None and found["before"]["gpus"] == 1
    assert found["before"]["gaps"] == [
        "in 10 of 15 minutes no request ended",
        "10 of 15 minutes have no record of GPUs",
        "the GPUs did not tell how busy they were",
    ]
    nothing = {
        key: found["after"][key] for key in ("effective_gpus", "gpus", "cost_per_million_tokens", "requests", "tokens")
    }
    assert set(nothing.values()) == {None}
    assert found["after"]["ttft_ms"] == {"p50": None, "p99": None, "samples": 0}


def test_a_kind_of_gpu_without_a_price_is_named(operation: models.Operation) -> None:
    models.Gpu.objects.update(kind="abacus")
    record(BEGUN + 10, traffic(BEGUN - 900, 15, 200.0, 0.5))
    before = measured(operation, 17)["before"]
    assert before["cost_per_million_tokens"] is None and before["gaps"] == ["GPU kind abacus has no price"]


def test_another_change_in_the_same_time_is_named(operation: models.Operation) -> None:
    models.Engine.objects.update(wanted=True)
    nothing = actions.rebalance(ANN, "m", {"decode": 1})
    assert nothing.state == "done" and not nothing.steps.exists()
    other = actions.scale_pool(ANN, "m", "decode", 0)
    models.Operation.objects.exclude(pk=operation.pk).update(created_at=moment(ENDED + 60))
    found = measured(operation, 17)
    said = f"operation {other.pk} (scale_pool) ran in this time too"
    assert said in found["after"]["gaps"] and said not in found["before"]["gaps"]


def test_an_operation_is_measured_once(operation: models.Operation) -> None:
    assert measured(operation, 17)
    assert measure_finished(moment(ENDED) + timedelta(hours=1)) == 0


def test_an_operation_without_a_model_says_so(operation: models.Operation) -> None:
    models.Model.objects.all().delete()
    assert measured(operation, 17) == {"gaps": ["its model is gone"]}

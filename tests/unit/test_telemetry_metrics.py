"""Live figures as Prometheus gets them: what is not known, or not of now, is not there."""

from __future__ import annotations

import pytest

from controlplane.common.metrics import page, registry
from controlplane.core.protocol import GpuRow
from controlplane.telemetry import live_rows
from controlplane.telemetry.board import Board
from controlplane.telemetry.metrics import live_series
from controlplane.telemetry.records import Sample
from controlplane.telemetry.testing import engine_row, request_row
from controlplane.telemetry.topics import FLEET
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView, PoolView
from tests.metrics_pages import Page

T0 = 1_796_018_400.0
GPUS = (GpuView("g0", "n1", 0, "h100-sxm", "e1"), GpuView("g1", "n1", 1, "h100-sxm", ""))
VIEW = FleetView(
    nodes={"n1": False},
    gpus=GPUS,
    models=(
        ModelView("llama", "monolithic", "none", 1000.0, 50.0, (PoolView("mixed", 1, 1),)),
        ModelView("quiet", "monolithic", "none", 500.0, 40.0, (PoolView("mixed", 1, 1),)),
    ),
    engines={"e1": EngineView("e1", "M1", "llama", "mixed", "ready", T0, "", 1, ("n1",), GPUS[:1])},
)


def shown(board: Board, now: float) -> Page:
    rows = live_rows.topics(board, VIEW, now)[FLEET]
    return Page(page(registry(lambda: live_series(rows))))


def feed(board: Board, seconds: int) -> float:
    for at in (T0 + second for second in range(seconds)):
        gpus = (GpuRow("g0", "e1", tensor=0.4, dram=0.6), GpuRow("g1", tensor=0.0, dram=0.0))
        board.apply(Sample("0-0", at, at, "agent:n1", "gpu", gpus), VIEW)
        board.apply(Sample("0-0", at, at, "agent:n1", "engine", (engine_row("e1", "llama", running=3),)), VIEW)
        row = request_row(f"r{at}", "llama", at - 0.9, ttft_ms=200.0)
        board.apply(Sample("0-0", at, at, "router:r1", "request", (row,)), VIEW)
    return T0 + seconds


def test_figures_carry_their_window_and_are_those_of_the_pages() -> None:
    board = Board()
    now = feed(board, 60)
    told = shown(board, now)
    assert told.value("twinpool_model_ttft_5m_seconds", model="llama", percentile="p99") == pytest.approx(0.2, rel=0.01)
    assert told.value("twinpool_model_ttft_5m_samples", model="llama") == 60
    assert told.value("twinpool_model_itl_5m_seconds", model="llama", percentile="p50") == pytest.approx(0.02, rel=0.01)
    assert told.value("twinpool_effective_gpus", role="mixed") == pytest.approx(0.6)
    assert told.value("twinpool_gpus", state="fresh") == 2
    assert told.value("twinpool_pool_requests_running", model="llama", role="mixed") == 3
    assert told.value("twinpool_model_slo_seconds", model="quiet", latency="ttft") == 0.5
    assert told.get("twinpool_model_ttft_5m_seconds", model="quiet", percentile="p99") == 0.0
    assert ("twinpool_pool_requests_running", frozenset({("model", "quiet"), ("role", "mixed")})) not in told.samples


def test_names_are_there_before_the_first_figure() -> None:
    nothing = Page(page(registry(lambda: live_series(()))))
    board = Board()
    assert nothing.names == shown(board, feed(board, 60)).names
    assert not [name for name, _ in nothing.samples if name.startswith("twinpool_")]

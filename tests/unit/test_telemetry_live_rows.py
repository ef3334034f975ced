"""Live rows: what a page shows when all is well, when samples are old, and when nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from controlplane.core.cost import Price
from controlplane.core.protocol import GpuRow, NodeRow, RouterRow
from controlplane.live.frames import changes
from controlplane.telemetry import live_rows
from controlplane.telemetry.board import BUSY, STALE_S, Board
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rows import FleetRow, LatencyMs, ModelRow, OperationRow, StepRow
from controlplane.telemetry.testing import engine_row, histogram, request_row
from controlplane.telemetry.topics import NODES
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView, PoolView

T0 = 1_796_018_400.0
GPUS = tuple(GpuView(f"g{i}", "n1", i, "h100-sxm", engine) for i, engine in enumerate(("e1", "e2", "e3", "")))


def engine(id: str, model: str, role: str, gpu: int) -> EngineView:
    return EngineView(id, id.upper(), model, role, "ready", T0, "", 1, ("n1",), (GPUS[gpu],))


VIEW = FleetView(
    nodes={"n1": False, "n2": True},
    gpus=GPUS,
    models=(
        ModelView("llama", "disaggregated", "nixl", 1000.0, 50.0, (PoolView("prefill", 1, 4), PoolView("decode", 2, 4))),
        ModelView("qwen", "monolithic", "none", 500.0, 50.0, (PoolView("mixed", 1, 1),)),
    ),
    engines={
        "e1": engine("e1", "llama", "prefill", 0),
        "e2": engine("e2", "llama", "decode", 1),
        "e3": engine("e3", "qwen", "mixed", 2),
    },
    table_generation=7,
)


def feed(board: Board, at: float, kind: Any, *rows: Any, source: str = "agent:n1") -> None:
    board.apply(Sample("0-0", at, at, source, kind, rows), VIEW)


def minute(board: Board, seconds: int = 60) -> float:
    """Steady work for some seconds; the moment after it."""
    for second in range(seconds):
        at = T0 + second
        feed(
            board, at, "gpu",
            GpuRow("g0", "e1", tensor=0.9, dram=0.2), GpuRow("g1", "e2", tensor=0.1, dram=0.6),
            GpuRow("g2", "e3", tensor=0.3), GpuRow("g3", tensor=0.0, dram=0.0),
        )  # fmt: skip
        moved = {"transfer": histogram([0.05] * second)}
        made = {"generation_tokens": 10.0 * second, "transfer_bytes": 1e9 * second}
        feed(
            board, at, "engine",
            engine_row("e1", "llama", counters={"generation_tokens": 1.0 * second}),
            engine_row("e2", "llama", counters=made, histograms=moved),
            engine_row("e3", "qwen", histograms={"itl": histogram([0.05] * second)}),
        )  # fmt: skip
        feed(board, at, "request", request_row(f"a{second}", "llama", at, ttft_ms=900.0), source="router:r1")
        feed(board, at, "request", request_row(f"b{second}", "qwen", at, ttft_ms=400.0, itl_ms=()), source="router:r1")
    return T0 + seconds


def fleet(board: Board, now: float) -> FleetRow:
    return live_rows.fleet_row(board, VIEW, now)


def model(board: Board, name: str, now: float) -> ModelRow:
    view = next(model for model in VIEW.models if model.name == name)
    return live_rows.model_row(board, VIEW, view, now)


def test_a_busy_fleet_in_one_row() -> None:
    board = Board()
    row = fleet(board, minute(board))
    assert row.requests_per_s == pytest.approx(2.0, rel=0.1)
    assert (row.ttft_model, row.ttft_slo_ms, row.ttft.p99) == ("llama", 1000.0, pytest.approx(900, rel=0.01))
    assert (row.gpus, row.gpus_stale, row.spare_gpus, row.table_generation) == (4, 0, 1, 7)
    assert row.effective_gpus == pytest.approx(0.9 + 0.6 + 0.3)
    assert row.effective_by_role == {
        "prefill": pytest.approx(0.9),
        "decode": pytest.approx(0.6),
        "mixed": pytest.approx(0.3),
    }
    assert row.output_tokens_per_s == pytest.approx(10, rel=0.1)
    assert row.transfer_bytes_per_s == pytest.approx(1e9, rel=0.1)
    assert row.transfer.count == pytest.approx(58, abs=2)


def test_money_is_of_all_gpus_and_of_what_of_them_is_not_busy() -> None:
    board = Board()
    now = minute(board)
    kinds = {gpu.kind for gpu in VIEW.gpus}
    row = live_rows.fleet_row(board, replace(VIEW, prices={kind: Price(2.0) for kind in kinds}), now)
    assert (row.cost_per_hour, row.cost_guess) == (8.0, False)
    known = sum(board.gpus[gpu.uuid].minute.mean(BUSY, now) is not None for gpu in VIEW.gpus)
    assert row.idle_per_hour == pytest.approx(2.0 * (known - 1.8))
    guessed = live_rows.fleet_row(board, replace(VIEW, prices={kind: Price(2.0, guess=True) for kind in kinds}), now)
    assert guessed.cost_guess
    unknown = fleet(board, now)
    assert (unknown.cost_per_hour, unknown.idle_per_hour) == (None, None), "a kind has no price"


def test_the_worst_model_is_the_one_that_uses_most_of_its_slo() -> None:
    board = Board()
    now = minute(board)
    row = fleet(board, now)
    assert (row.itl_model, row.itl.p99) == ("qwen", pytest.approx(99, rel=0.03))
    assert model(board, "llama", now).itl.p99 == pytest.approx(20, rel=0.01)


def test_nothing_known_is_none_and_never_zero() -> None:
    row = fleet(Board(), T0)
    assert (row.requests_per_s, row.effective_gpus, row.output_tokens_per_s, row.transfer_bytes_per_s) == (None,) * 4
    assert (row.ttft, row.ttft_model, row.ttft_slo_ms) == (LatencyMs(None, None, 0), "", None)
    assert (row.gpus, row.gpus_stale) == (0, 4)
    node = live_rows.node_row(Board(), VIEW, "n1", GPUS, T0)
    assert (node.state, node.cpu, node.sampled_at) == ("silent", None, None)
    shown = live_rows.engine_row(Board(), VIEW.engines["e1"])
    assert (shown.tensor, shown.running, shown.sampled_at) == ([None], None, None)


def test_gpus_of_a_node_tell_who_holds_them_and_one_that_fell_silent_knows_nothing() -> None:
    board = Board()
    feed(board, T0, "gpu", GpuRow("g3", tensor=0.5, memory_used_bytes=1 << 30, power_w=90.0))
    now = T0 + STALE_S + 1
    feed(board, now, "gpu", GpuRow("g0", "e1", tensor=0.9, dram=0.2, memory_used_bytes=70 << 30, power_w=640.0))
    view = replace(VIEW, cordoned=frozenset({"n1"}), heard_at={"n1": now})
    nodes = live_rows.topics(board, view, now)[NODES]
    assert [row.id for row in nodes] == ["node:n1", "node:n2", "gpus:n1", "gpus:n2"]
    node, gpus = nodes[0], nodes[2]
    assert (node.cordoned, node.heard_at, nodes[1].cordoned, nodes[1].heard_at) == (True, now, False, None)
    assert gpus.indices == [0, 1, 2, 3] and gpus.engines == ["e1", "e2", "e3", ""]
    assert gpus.labels == ["E1", "E2", "E3", ""] and gpus.roles == ["prefill", "decode", "mixed", ""]
    assert gpus.tensor == [0.9, None, None, None] and gpus.power_w == [640.0, None, None, None]
    assert gpus.memory_used_bytes == [70 << 30, None, None, None]
    assert gpus.sampled_at == now and nodes[3].uuids == [] and nodes[3].sampled_at is None


def test_a_router_without_requests_makes_the_rate_zero() -> None:
    board = Board()
    feed(board, T0, "router", RouterRow("r1", 0, 0, 0, 0, 0), source="router:r1")
    assert fleet(board, T0 + 10).requests_per_s == 0
    assert fleet(board, T0 + 100).requests_per_s is None


def test_what_a_router_had_no_room_for_counts_as_lost() -> None:
    board = Board()
    for second, dropped in enumerate((40, 40, 45, 3)):  # 40 were dropped before we looked; then it was started again
        feed(board, T0 + second, "router", RouterRow("r1", 0, 0, 0, 0, 0, dropped), source="router:r1")
    feed(board, T0 + 4, "node", NodeRow("n1", dropped=9))
    assert fleet(board, T0 + 5).gaps == 5 + 3
    assert fleet(board, T0 + 400).gaps == 0


def test_what_is_older_than_five_seconds_leaves_the_totals_and_keeps_its_last_values() -> None:
    board = Board()
    now = minute(board) + 20
    feed(board, now, "gpu", GpuRow("g1", "e2", tensor=0.1, dram=0.6))
    row = fleet(board, now)
    assert (row.gpus, row.gpus_stale) == (1, 3)
    assert row.effective_gpus == pytest.approx(0.6)
    shown = live_rows.engine_row(board, VIEW.engines["e1"])
    assert (shown.tensor, shown.sampled_at) == ([0.9], T0 + 59)
    assert model(board, "llama", now).pools["prefill"]["running"] is None


def test_a_gpu_whose_own_samples_stopped_is_not_shown_as_new_as_its_engine() -> None:
    board = Board()
    now = minute(board) + 20
    feed(board, now, "engine", engine_row("e1", "llama"))
    shown = live_rows.engine_row(board, VIEW.engines["e1"])
    assert (shown.tensor, shown.sampled_at) == ([None], now)


def test_a_gpu_of_which_only_memory_is_known_is_no_idle_gpu() -> None:
    board = Board()
    feed(board, T0, "gpu", GpuRow("g0", "e1", memory_used_bytes=5))
    row = fleet(board, T0 + 1)
    assert (row.gpus, row.effective_gpus) == (1, None)


def test_failures_of_ours_are_counted_and_those_of_clients_are_not() -> None:
    board = Board()
    for number, outcome in enumerate(("ok", "client_error", "engine_error", "cancelled", "cut")):
        feed(board, T0, "request", request_row(f"r{number}", "llama", T0, outcome=outcome), source="router:r1")
    assert fleet(board, T0 + 1).failed == 2
    assert fleet(board, T0 + 400).failed == 0


def test_a_model_row_tells_its_pools_apart() -> None:
    board = Board()
    now = minute(board)
    row = model(board, "llama", now)
    assert row.pools["prefill"] == {
        "engines": 1, "ready": 1, "desired": 1, "gpus": 1, "tensor": pytest.approx(0.9), "dram": pytest.approx(0.2),
        "waiting": 0, "running": 1,
    }  # fmt: skip
    assert (row.pools["decode"]["desired"], row.tensor_parallel, row.gpus) == (2, 4, 2)
    assert sum(row.transfer_histogram) == pytest.approx(58, abs=3)
    assert len(row.transfer_histogram) == 24
    assert model(board, "qwen", now).transfer_bytes_per_s is None


def test_each_model_has_a_topic_with_its_own_rows_and_all_is_json() -> None:
    board = Board()
    now = minute(board)
    topics = live_rows.topics(board, VIEW, now)
    assert [row.id for row in topics["model:llama"]] == ["model:llama", "engine:e1", "engine:e2"]
    assert [row.id for row in topics["fleet"]] == [
        "fleet", "model:llama", "model:qwen", "engine:e1", "engine:e2", "engine:e3", "node:n1", "node:n2"
    ]  # fmt: skip
    assert [row["state"] for row in orjson.loads(orjson.dumps(topics["fleet"]))[-2:]] == ["ok", "lost"]


def test_sparks_are_five_seconds_apart_and_a_gap_is_empty() -> None:
    board = Board()
    feed(board, T0, "router", RouterRow("r1", 0, 0, 0, 0, 0), source="router:r1")
    for now in (T0, T0 + 1, T0 + 5, T0 + 20):
        spark = live_rows.topics(board, VIEW, now)["fleet"][0].spark["requests_per_s"]
    assert spark == [0.0, 0.0, None, None, 0.0]
    for now in range(300):
        spark = live_rows.topics(board, VIEW, T0 + 100 + now)["fleet"][0].spark["requests_per_s"]
    assert len(spark) == 40


def test_an_answer_that_was_not_streamed_tells_no_time_to_first_token() -> None:
    board = Board()
    feed(board, T0, "request", request_row("r", "qwen", T0, stream=False, ttft_ms=9000.0), source="router:r1")
    assert model(board, "qwen", T0 + 1).ttft.count == 0
    feed(board, T0, "engine", engine_row("e3", "qwen", state="starting"))
    feed(board, T0 + 1, "engine", engine_row("e3", "qwen", histograms={"ttft": histogram([0.05] * 10)}))
    assert model(board, "qwen", T0 + 1).ttft.count == 10


def test_requests_that_a_router_held_back_count_when_they_ended() -> None:
    board = Board()
    rows = tuple(request_row(f"r{n}", "llama", T0 - 200 + n, total_ms=1000.0) for n in range(10))
    feed(board, T0, "request", *rows, source="router:r1")
    row = fleet(board, T0 + 1)
    assert (row.requests_per_s, row.ttft.count) == (0.0, 10)


def rebalance(state: str, finished_at: float | None = None) -> OperationRow:
    return OperationRow(
        id="operation:12", type="operation", number=12, verb="rebalance", model="llama", state=state, actor="ops-1",
        reason="", outcome="", created_at=T0 + 10, finished_at=finished_at, steps_done=0, steps_total=1,
        subject="model:llama",
    )  # fmt: skip


def with_operation(state: str, step_state: str, finished_at: float | None = None) -> FleetView:
    step = StepRow("step:12/0", "step", 12, 0, "retask", "prefill", "e2", "E2", step_state, "", T0 + 11, None)
    return replace(VIEW, operations=(rebalance(state, finished_at),), steps={12: (step,)})


def rows_of(board: Board, view: FleetView, topic: str, now: float) -> dict[str, dict[str, Any]]:
    found = orjson.loads(orjson.dumps(live_rows.topics(board, view, now)[topic]))
    return {row["id"]: row for row in found}


def test_the_topic_of_an_operation_holds_its_steps_and_their_engines_and_no_others() -> None:
    rows = rows_of(Board(), with_operation("running", "waiting"), "operation:12", T0 + 20)
    assert list(rows) == ["operation:12", "traffic:12", "step:12/0", "engine:e2"]


def test_old_rows_of_an_operation_and_its_changes_are_its_new_rows() -> None:
    board = Board()
    views = [
        with_operation("pending", "waiting"),
        with_operation("running", "running"),
        with_operation("done", "done", T0 + 13),
    ]
    state: dict[str, dict[str, Any]] = {}
    for second, view in enumerate(views, start=11):
        request = request_row("a", "llama", T0 + 12)
        board.apply(Sample("0-0", T0 + second, T0 + second, "router:r1", "request", (request,)), view)
        now = rows_of(board, view, "operation:12", T0 + second)
        for row in changes(state, now):
            state[row["id"]] = row
        assert state == now


def test_requests_are_counted_from_an_operations_start_to_its_end_for_its_model_alone() -> None:
    board, running = Board(), with_operation("running", "running")

    def ended(view: FleetView, model: str, at: float, outcome: str = "ok") -> None:
        row = request_row(f"{model}{at}", model, at - 1, total_ms=1000.0, outcome=outcome)
        board.apply(Sample("0-0", at, at, "router:r1", "request", (row,)), view)

    for at, outcome in ((5, "ok"), (12, "ok"), (13, "cut"), (14, "client_error")):
        ended(running, "llama", T0 + at, outcome)
    ended(running, "qwen", T0 + 13)
    over = with_operation("done", "done", T0 + 15)
    ended(over, "llama", T0 + 16, "cut")
    traffic = rows_of(board, over, "operation:12", T0 + 20)["traffic:12"]
    assert (traffic["requests"], traffic["lost"], traffic["since"]) == (3, 1, T0 + 10)
    assert "operation:12" not in live_rows.topics(board, replace(over, steps={}), T0 + 20)

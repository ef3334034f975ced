"""Figures of GPUs, engines, pools, transfers, pairs and waste: right values, units, counts and freshness, gaps as gaps."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol import GpuRow, Histogram, RouterRow
from controlplane.telemetry.hours import SETTLED_S
from controlplane.telemetry.queries.effective import effective_gpus
from controlplane.telemetry.queries.engines import engine_figures, engine_series
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.gpus import gpu_figures, gpu_series
from controlplane.telemetry.queries.handoffs import handoff_split
from controlplane.telemetry.queries.models import model_figures, model_series
from controlplane.telemetry.queries.pairs import pair_figures, pair_series
from controlplane.telemetry.queries.pools import pool_figures, pool_series
from controlplane.telemetry.queries.results import Waste
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.transfers import transfer_figures, transfer_series
from controlplane.telemetry.queries.waste import thirty_days, today, waste
from controlplane.telemetry.queries.windows import Window
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.queries_kit import D1, HOUR_S, NOON, Recorder, engine, fleet

pytestmark = pytest.mark.django_db
BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def seconds(values_s: list[float], times: int) -> Histogram:
    """A histogram in which each of these values was seen `times` times."""
    counts = tuple(float(sum(value <= bound for value in values_s) * times) for bound in BOUNDS_S)
    return Histogram(BOUNDS_S, counts, sum(values_s) * times, float(len(values_s) * times))


class Load:
    """Two minutes and more of a prefill and a decode engine of one GPU each, second by second."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.transfers = 0

    def second(self, at: float) -> None:
        """10 MB moved in one transfer of 0.05 s (bucket 0.02 to 0.05), one request with a handoff of 80 ms."""
        self.transfers += 1
        done = self.transfers
        self.recorder.take(
            at, "gpu", GpuRow("g1", "p1", 0.9, 0.9, 0.2, 70, 500.0), GpuRow("g2", "d1", 0.1, 0.2, 0.5), GpuRow("g3")
        )
        prefill = {
            "leases_expired": done // 10,
            "prompt_tokens": done * 100,
            "prefix_queries": done * 100,
            "prefix_hits": done * 25,
        }
        decode = {
            "transfers": done,
            "transfer_bytes": done * 1e7,
            "generation_tokens": done * 50,
            "transfers_failed": done // 20,
        }
        times = {name: seconds([value], done) for name, value in (("transfer", 0.05), ("queue", 0.06), ("prefill", 0.01))}
        self.recorder.take(
            at,
            "engine",
            engine_row("p1", "llama", running=2, waiting=3, kv_usage=0.5, counters=prefill),
            engine_row("d1", "llama", running=8, waiting=0, kv_usage=0.25, counters=decode, histograms=times),
        )
        row = request_row(
            f"r{at}",
            "llama",
            at - 0.9,
            prefill_engine="p1",
            decode_engine="d1",
            kv_bytes=1000,
            handoff_ms=80.0,
            cached_tokens=5,
        )
        self.recorder.take(at, "request", row)

    def run(self, since: float, until: float) -> None:
        for second in range(int(since), int(until)):
            self.second(second)


@pytest.fixture
def load() -> Load:
    return Load(Recorder())


def value(figure: Figure) -> tuple[float | None, str]:
    return (None if figure.value is None else pytest.approx(figure.value, rel=1e-6)), figure.unit


def near(expected: float) -> Any:
    return pytest.approx(expected, rel=0.02)


def test_pools_tell_use_load_and_cache_of_their_engines(load: Load) -> None:
    load.run(NOON, NOON + 300)
    load.recorder.write(NOON + 310)
    window = Window.last(300, NOON + 310)
    prefill, decode = sorted(pool_figures(window, "llama"), key=lambda pool: pool.role, reverse=True)
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert value(prefill.use.effective) == (near(0.9), "GPUs")
    assert value(decode.use.effective) == (near(0.5), "GPUs")
    assert (prefill.use.gpus.value, prefill.use.busy_share.value) == (near(1), near(0.9))
    assert (value(prefill.tensor), value(prefill.dram)) == ((near(0.9), "share"), (near(0.2), "share"))
    assert (prefill.running.value, prefill.waiting.value, prefill.waiting_max.value) == (2, 3, 3)
    assert (decode.kv_usage.value, decode.running.unit) == (0.25, "requests")
    assert (prefill.prefix_hits.value, decode.prefix_hits.value) == (0.25, None)
    assert value(prefill.prompt_tokens_per_s) == (near(100), "tokens/s")
    assert decode.queue.p99.value == near(100)
    assert prefill.queue.p99.value is None
    assert prefill.tensor.count == 300
    assert (prefill.tensor.at, prefill.tensor.stale, prefill.tensor.window_s) == (NOON + 300, False, 300)


def test_a_figure_is_stale_once_its_newest_row_is_older_than_rows_are_wont_to_be(load: Load) -> None:
    load.run(NOON, NOON + 120)
    load.recorder.write(NOON + 125)
    for asked_at, stale in ((NOON + 130, False), (NOON + 190, False), (NOON + 200, True)):
        figure = model_figures("llama", Window.last(600, asked_at)).requests_per_s
        assert (figure.stale, figure.at) == (stale, NOON + 120)
    past = model_figures("llama", Window(NOON, NOON + 120, NOON + 9000)).requests_per_s
    assert (past.stale, past.value) == (False, near(1))
    nothing = model_figures("other", Window.last(600, NOON + 130)).requests_per_s
    assert (nothing.value, nothing.at, nothing.stale, nothing.count) == (None, None, True, 0)


def test_clients_figures_are_of_finished_requests_by_what_their_records_stand_for(load: Load) -> None:
    load.run(NOON, NOON + 60)
    load.recorder.take(NOON + 61, "request", request_row("x", "llama", NOON + 60, outcome="cut", weight=3, stream=False))
    load.recorder.write(NOON + 130)
    model = model_figures("llama", Window(NOON, NOON + 120, NOON + 130))
    assert (model.requests.value, model.failed.value, model.client_errors.value) == (63, 3, 0)
    assert model.requests_per_s.value == pytest.approx(63 / 61), "a minute of which one second is told of"
    assert (model.ttft.p50.count, model.total.p50.count) == (60, 63)
    assert (model.ttft.p50.value, model.handoff.p99.value, model.itl.p99.value) == (near(100), near(80), near(20))
    assert model.cached.value == near(60 * 5 / (63 * 50))
    assert value(model.kv_bytes) == (60_000, "B")


def test_minutes_without_a_record_are_gaps_and_minutes_without_a_request_are_zero(load: Load) -> None:
    load.run(NOON, NOON + 60)
    for minute in (1, 3):
        load.recorder.take(NOON + 60 * minute, "router", RouterRow("r1", 0, 0, 0, 0, 0))
    load.recorder.write(NOON + 400)
    series = model_series("llama", Window(NOON, NOON + HOUR_S, NOON + 2 * HOUR_S))
    assert series.requests_per_s.values[:5] == [near(1), 0, None, 0, None]
    assert series.ttft.p99.values[:5] == [near(100), None, None, None, None]
    assert series.ttft.count.values[:5] == [60, 0, None, 0, None]
    assert series.requests_per_s.step_s == 60
    assert len(series.requests_per_s.starts) == len(series.requests_per_s.values) == 60


def test_short_windows_come_in_cells_of_ten_seconds(load: Load) -> None:
    load.run(NOON, NOON + 100)
    load.run(NOON + 130, NOON + 200)
    load.recorder.write(NOON + 215)
    window = Window(NOON, NOON + 300, NOON + 300)
    series = model_series("llama", window)
    cells = series.requests_per_s.values
    assert series.requests_per_s.step_s == 10
    assert (cells[0:10], cells[10:13], cells[13:20]) == ([1.0] * 10, [None] * 3, [1.0] * 7)
    assert series.ttft.p50.values[5] == near(100)
    pools = pool_series("llama", window)
    assert pools["decode"].running.values[5:14] == [8, 8, 8, 8, 8, None, None, None, 8]
    assert pools["decode"].queue.p99.values[5] == near(100)
    assert (pools["decode"].effective.step_s, pools["decode"].effective.values[0]) == (60, near(0.5))
    transfers = transfer_series("llama", window)
    assert transfers.bytes_per_s.values[5] == near(1e7)
    assert transfers.heat.counts[5] is not None
    assert (sum(transfers.heat.counts[5]), transfers.heat.counts[11]) == (10, None)
    one = engine_series("d1", window)
    assert (one.output_tokens_per_s.values[5], one.kv_usage.values[11]) == (near(50), None)


def test_engines_and_gpus_tell_their_own(load: Load) -> None:
    load.run(NOON, NOON + 120)
    load.recorder.write(NOON + 190)
    window = Window(NOON, NOON + 120, NOON + 190)
    decode, prefill = engine_figures(window, "llama")
    assert (decode.engine, decode.role, decode.state, decode.incarnation) == ("d1", "decode", "ready", 1)
    assert (decode.running.value, decode.running.count, decode.kv_usage_max.value) == (8, 120, 0.25)
    assert decode.transfer.p50.value == pytest.approx(50, rel=0.6)  # somewhere in the engine's own bucket
    assert decode.transfer.p50.count == near(119)
    assert prefill.leases_expired.value == 12
    assert engine_figures(window, engine="p1") == [prefill]
    gpus = gpu_figures(window)
    assert [(gpu.uuid, gpu.engine, gpu.role) for gpu in gpus] == [
        ("g1", "p1", "prefill"),
        ("g2", "d1", "decode"),
        ("g3", "", ""),
    ]
    assert (gpus[0].busy.value, gpus[0].tensor.value, gpus[0].power_w.value) == (near(0.9), near(0.9), 500)
    assert (gpus[0].memory_used_bytes.value, gpus[2].busy.value, gpus[2].busy.count) == (70, None, 120)
    assert gpu_figures(window, ["g2"]) == [gpus[1]]
    assert gpu_series("g2", window).busy.values == [near(0.5), near(0.5)]


def test_transfers_are_told_by_pool_and_pairs_by_the_routers(load: Load) -> None:
    load.run(NOON, NOON + 120)
    load.recorder.write(NOON + 190)
    window = Window(NOON, NOON + 120, NOON + 190)
    decode, prefill = transfer_figures(window, "llama")
    assert (decode.role, value(decode.kv_bytes)) == ("decode", (near(119e7), "B"))
    assert value(decode.bytes_per_s) == (near(119e7 / 120), "B/s")
    assert decode.bytes_per_transfer_s.value == pytest.approx(1e7 / 0.05, rel=0.6)
    assert (decode.failed.value, prefill.leases_expired.value) == (6, 12)
    (pair,) = pair_figures("llama", window)
    assert (pair.prefill, pair.decode, pair.handoffs.value, pair.failed.value) == ("p1", "d1", 120, 0)
    assert (pair.handoff.p99.value, pair.bytes_per_s.value) == (near(80), near(1000))
    series = pair_series("llama", "p1", "d1", Window(NOON, NOON + 2 * HOUR_S, NOON + 3 * HOUR_S))
    assert series.handoffs_per_s.values[:3] == [near(1), near(1), None]
    assert pair_series("llama", "p1", "d2", window).handoffs_per_s.values == [0, 0]


def test_a_handoff_is_split_into_what_the_decode_engines_tell(load: Load) -> None:
    load.run(NOON, NOON + 120)
    load.recorder.write(NOON + 190)
    split = handoff_split("llama", Window(NOON, NOON + 120, NOON + 190))
    parts = (split.handoff, split.transfer, split.decode_queue, split.first_step, split.rest)
    assert [part.value for part in parts] == pytest.approx([80, 50, 10, 10, 10])
    assert {part.unit for part in parts} == {"ms"}
    empty = handoff_split("other", Window(NOON, NOON + 120, NOON + 190))
    assert (empty.handoff.value, empty.transfer.value, empty.rest.value) == (None, None, None)


def test_waste_is_what_was_held_and_did_no_work_and_unknown_is_not_waste(load: Load) -> None:
    load.run(NOON, NOON + 600)
    load.recorder.write(NOON + 700)
    found = waste(Window(NOON, NOON + 600, NOON + 700))
    (llama,) = found.models
    hours = 600 / 3600
    assert value(llama.total.held) == (near(2 * hours), "GPU-h")
    assert (llama.total.effective.value, llama.total.wasted.value) == (near(1.4 * hours), near(0.6 * hours))
    assert (llama.total.effective_gpus.value, llama.total.busy_share.value) == (near(1.4), near(0.7))
    assert {pool.role: pool.effective.value for pool in llama.pools} == {
        "prefill": near(0.9 * hours),
        "decode": near(0.5 * hours),
    }
    assert found.spare is not None
    assert (found.spare.held.value, found.spare.unknown.value, found.spare.busy_share.value) == (
        near(hours),
        near(hours),
        None,
    )
    assert (found.spare.wasted.value, found.total.gpus.value, found.covered.value) == (0, near(3), 1)
    fleet_wide = effective_gpus(Window(NOON, NOON + 600, NOON + 700))
    assert (fleet_wide.gpus.value, fleet_wide.effective.value) == (near(3), near(1.4))
    assert effective_gpus(Window(NOON, NOON + 600, NOON + 700), "llama").gpus.value == near(2)


def test_waste_over_weeks_is_the_same_from_hours_as_from_minutes(load: Load) -> None:
    for hour in range(4):
        load.run(NOON + hour * HOUR_S + 1800, NOON + hour * HOUR_S + 1860)
    now = NOON + 4 * HOUR_S + SETTLED_S
    load.recorder.write(now)
    month, since = hours_of(thirty_days(now)), hours_of(today(now, NOON + 1830))
    assert load.recorder.roll_up() == 4
    assert hours_of(thirty_days(now)) == pytest.approx(month)
    assert hours_of(today(now, NOON + 1830)) == pytest.approx(since)
    assert month == pytest.approx([3 * 240 / 3600, 1.4 * 240 / 3600, 0.6 * 240 / 3600, 240 / 3600, 240 / (30 * 86_400)])
    assert since[0] == month[0]  # the minute of midnight counts whole


def hours_of(found: Waste) -> list[float | None]:
    total = found.total
    return [part.value for part in (total.held, total.effective, total.wasted, total.unknown, found.covered)]


def test_a_pool_whose_engines_changed_their_role_is_two_pools() -> None:
    recorder = Recorder()
    recorder.take(NOON, "gpu", GpuRow("g1", "p1", 1.0))
    recorder.view = fleet(engine("p1", "decode"), D1)
    recorder.take(NOON + 30, "gpu", GpuRow("g1", "p1", 0.0))
    recorder.write(NOON + 100)
    pools = {pool.role: pool.use.busy_share.value for pool in pool_figures(Window(NOON, NOON + 60, NOON + 100))}
    assert pools == {"prefill": 1, "decode": 0}


def test_the_tag_of_what_is_stored_changes_with_it(load: Load) -> None:
    assert stored().at is None
    load.run(NOON, NOON + 60)
    load.recorder.write(NOON + 100)
    first = stored()
    assert (first.at, first.hours_until) == (NOON + 100, 0)
    load.recorder.write(NOON + HOUR_S + SETTLED_S)
    load.recorder.roll_up()
    last = stored()
    assert last.hours_until == NOON + HOUR_S
    assert len({first.tag, last.tag, stored().tag}) == 2

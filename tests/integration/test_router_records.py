"""What a request leaves behind: one record with its whole story, and counts on /metrics that are exact."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.core.codec import decode, encode
from controlplane.core.protocol import ITL_BOUNDS_MS, RequestRow, Slo
from controlplane.router.record import gap_counts
from controlplane.router.sampling import Sampler
from controlplane.router.usage import Usage
from tests.integration import router_engine as act
from tests.integration.router_kit import QUICK, TEXT, Kit, fakes, pair, running, split_model, whole_model


def rows_of(kit: Kit) -> list[RequestRow]:
    rows: list[RequestRow] = []
    kit.router.telemetry.request = rows.append  # type: ignore[method-assign]
    return rows


async def metric(kit: Kit, name: str, **labels: str) -> float:
    """Sum of the samples called `name` with these labels."""
    page = (await kit.client.get(kit.url + "/metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


async def test_a_record_tells_the_whole_story(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        rows = rows_of(two.kit)
        await two.kit.events({**TEXT, "max_tokens": 300})
        (row,) = rows
        assert (row.path, row.reason, row.outcome, row.status) == ("disaggregated", "disaggregated", "ok", 200)
        assert row.prefill_engine in ("p1", "p2") and row.decode_engine in ("d1", "d2")
        others = {("prefill", "p1"), ("prefill", "p2"), ("decode", "d1"), ("decode", "d2")}
        taken = {("prefill", row.prefill_engine), ("decode", row.decode_engine)}
        assert {(passed.leg, passed.engine) for passed in row.passed} == others - taken
        for stage in (row.queue_ms, row.prefill_ms, row.handoff_ms, row.ttft_ms, row.total_ms):
            assert stage is not None and stage >= 0
        assert (row.output_tokens, row.kv_bytes) == (300, (row.prompt_tokens or 0) * 1000)
        assert len(row.itl_counts) == len(ITL_BOUNDS_MS) + 1
        assert len(row.itl_ms) <= 256
        assert sum(row.itl_counts) >= len(row.itl_ms)
        assert (row.retries, row.resumes, row.weight) == (0, 0, 1)
        assert decode(RequestRow, encode(row)) == row


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
        ("00-" + "A" * 32 + "-" + "b" * 16 + "-01", ""),
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-01-" + "x" * 9999, ""),
        (None, ""),
    ],
)
async def test_a_record_keeps_the_clients_trace_if_it_is_well_formed(tmp_path: Path, sent: str | None, told: str) -> None:
    async with pair(tmp_path, prefills=1) as two:
        rows = rows_of(two.kit)
        await two.kit.post(TEXT, "/v1/completions", **({"traceparent": sent} if sent else {}))
        assert [row.traceparent for row in rows] == [told]


def test_gaps_are_counted_by_their_bounds() -> None:
    counts = gap_counts([0.5, 1.0, 1.1, 4000.0], [])
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)
    assert gap_counts([1.0], counts) == (3, *counts[1:])


async def test_what_requests_without_a_record_used_is_told_too(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1) as two:
        rows, others = rows_of(two.kit), list[tuple[str, Usage]]()
        two.kit.router.telemetry.untold = lambda model, _team, _key, used: others.append((model, used))  # type: ignore[method-assign, misc]
        two.kit.router.sampler.weight = lambda must: 3 if len(rows) + len(others) == 2 else 0  # type: ignore[method-assign]
        for _ in range(4):
            await two.kit.events({**TEXT, "max_tokens": 7})
        (row,) = rows
        assert row.weight == 3 and row.others_told
        assert [model for model, _ in others] == [row.model] * 3
        assert {(used.prompt, used.output) for _, used in others} == {(row.prompt_tokens, 7)}


async def test_counts_per_engine_and_pair_are_exact(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1) as two:
        for number in range(10):
            await two.kit.post({**TEXT, "prompt": f"x{number}", "stream": number % 2 == 0})
        by_pair = {engine.id: len(engine.generations()) for engine in two.decodes}
        for engine, count in by_pair.items():
            labels = {"prefill": "p1", "decode": engine}
            assert await metric(two.kit, "twinpool_router_pair_handoffs_total", **labels) == count
            assert await metric(two.kit, "twinpool_router_engine_output_tokens_total", engine=engine) == 4 * count
        prompts = await metric(two.kit, "twinpool_router_engine_prompt_tokens_total")
        assert await metric(two.kit, "twinpool_router_pair_kv_bytes_total") == 1000 * prompts > 0
        assert await metric(two.kit, "twinpool_router_requests_total", outcome="ok") == 10
        assert await metric(two.kit, "twinpool_router_token_seconds_count", model="m") == 5
        await two.kit.apply(split_model([two.p1], [two.d1]))
        assert await metric(two.kit, "twinpool_router_engine_answers_total", engine="d1") == by_pair["d1"]


async def test_every_metric_and_field_is_documented(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / name).read_text() for name in ("router-records.md", "monitoring.md"))
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        page = (await kit.client.get(kit.url + "/metrics")).text
    families = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert [name for name in families if f"{name.removeprefix('twinpool_router')}`" not in text] == []
    assert [field.name for field in fields(RequestRow) if f"`{field.name}`" not in text] == []


async def test_faults_are_counted_by_engine(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [act.answer(500)] * 2
        for _ in range(3):
            await kit.post(TEXT)
        assert await metric(kit, "twinpool_router_engine_faults_total", engine="e1", fault="status") == 2
        assert await metric(kit, "twinpool_router_engine_answers_total", engine="e1") == 1


@pytest.mark.parametrize(
    ("slo", "broken", "told"),
    [(Slo(), 0, 2), (Slo(ttft_ms=0.0), 0, 20), (Slo(itl_ms=0.0), 0, 20), (Slo(), 20, 20)],
    ids=["good", "late", "slow", "failed"],
)
async def test_a_busy_router_tells_every_failed_and_slow_request_and_some_of_the_others(
    tmp_path: Path, slo: Slo, broken: int, told: int
) -> None:
    limits = replace(QUICK, soft_faults=1000)
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine, slo=slo), limits=limits) as kit:
        rows = rows_of(kit)
        kit.router.sampler = _Every(10)
        engine.acts = [act.break_stream(1)] * broken
        for _ in range(20):
            await kit.post({**TEXT, "stream": True, "seed": 1, "temperature": 1})
        assert len(rows) == told
        assert sum(row.weight for row in rows) == 20


class _Every(Sampler):
    def __init__(self, every: int) -> None:
        super().__init__(1.0)
        self._every = every

    def sweep(self, passed_s: float) -> None:
        pass


def test_a_sampler_stands_for_all_requests() -> None:
    sampler, weights = Sampler(100.0), []
    for _ in range(20):
        weights += [sampler.weight(must=False) for _ in range(500)]
        sampler.sweep(0.5)
    assert weights[:500] == [1] * 500
    told = [weight for weight in weights[1000:] if weight]
    assert abs(sum(told) - 9000) <= 10
    assert len(told) == 900
    assert sampler.weight(must=True) == 1

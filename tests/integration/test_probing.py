"""Probes of pairs against real simulated engines: what counts as proof that KV moves, and what is written about it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection

from controlplane.common.engineclient import EngineClient
from controlplane.config import config
from controlplane.control import handoff, probing
from controlplane.control.probing import Prober, probe_pair
from controlplane.core.handoff_probe import BEHIND
from controlplane.core.signing import engine_key, node_key
from controlplane.fleet import models
from tests.simulated_engines import MODEL, RunningEngine, running, spec, until

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., RunningEngine]


@pytest.fixture
def start(tmp_path: Path, valkey: redis.Redis) -> Iterator[Start]:
    """Starts an engine with the key that control derives, and makes its rows."""
    model = models.Model.objects.create(name=MODEL, source="meta/llama", config={}, engine_kind="simulated", block_size=16)
    node = models.Node.objects.create(name="n1")
    with ExitStack() as stack:

        def begin(id: str, connector: str = "nixl", **changes: Any) -> RunningEngine:
            key = engine_key(node_key(config().fleet_secret(), "n1"), id, 1)
            engine = stack.enter_context(running(tmp_path, spec(id, connector=connector, **changes), key=key))
            engine.http.headers["Authorization"] = f"Bearer {key}"
            row = models.Engine.objects.create(
                id=id, model=model, role="mixed", number=models.Engine.objects.count(), incarnation=1, url=engine.url
            )
            models.Rank.objects.create(engine=row, node=node)
            return engine

        yield begin


def pair(prefill: str, decode: str) -> models.Pair:
    return models.Pair.objects.create(prefill_id=prefill, prefill_incarnation=1, decode_id=decode, decode_incarnation=1)


def probed(row: models.Pair) -> models.Pair:
    probe_pair(row.pk)
    row.refresh_from_db()
    return row


def test_both_directions_of_two_engines_are_verified_by_what_moved(start: Start) -> None:
    one, other = start("e1"), start("e2")
    there, back = probed(pair("e1", "e2")), probed(pair("e2", "e1"))
    assert (there.state, back.state) == ("verified", "verified"), (there.reason, back.reason)
    assert there.kv_bytes == other.page().counters["transfer_bytes"] > 0
    assert back.kv_bytes == one.page().counters["transfer_bytes"] > 0
    assert there.attempts == 1
    assert there.handoff_ms is not None and there.handoff_ms > 0
    assert f"{there.kv_bytes:,} bytes" in there.reason


def test_every_probe_asks_something_else(start: Start) -> None:
    start("e1")
    other = start("e2")
    row = pair("e1", "e2")
    moved = []
    for _ in range(2):
        models.Pair.objects.update(state="asked")
        assert probed(row).state == "verified", row.reason
        moved.append(other.page().counters["external_tokens"])
    assert moved[1] > 1.9 * moved[0]
    assert not other.page().counters["prefix_hits"]


def test_a_decode_engine_that_computes_the_prompt_itself_is_found_out_though_its_answer_is_right(start: Start) -> None:
    start("e1")
    start("e2", connector="none")
    row = probed(pair("e1", "e2"))
    assert row.state == "failed"
    assert "no KV moved: by the decode engine's counters 0 of" in row.reason


def test_a_prefill_engine_that_keeps_no_kv_is_found_out(start: Start) -> None:
    start("e1", connector="none")
    start("e2")
    row = probed(pair("e1", "e2"))
    assert (row.state, row.reason) == (
        "failed",
        "e1 kept no KV for another engine: its connector is not set up to hand over",
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"transfer": "corrupt"}, "the answer is not that of the same prompt answered whole"),
        ({"transfer": "fail"}, "e2 broke off the decode leg"),
        ({"status": 503}, "e2 answered 503 to the decode leg"),
    ],
)
def test_a_handoff_that_goes_wrong_fails_with_what_was_seen(fault: dict[str, Any], said: str, start: Start) -> None:
    start("e1")
    assert start("e2").http.post("/twinpool/faults", json=fault).status_code == 200
    row = probed(pair("e1", "e2"))
    assert row.state == "failed"
    assert said in row.reason


def test_one_handshake_that_fails_is_tried_again(start: Start) -> None:
    start("e1")
    start("e2").http.post("/twinpool/faults", json={"transfer": {"mode": "fail", "count": 1}})
    assert probed(pair("e1", "e2")).state == "verified"


def test_an_engine_that_is_gone_fails_the_pair(start: Start) -> None:
    start("e1")
    start("e2").kill()
    row = probed(pair("e1", "e2"))
    assert (row.state, row.reason.split(": ")[0]) == ("failed", "the counters of e2")


def test_an_engine_that_hangs_keeps_nobody_waiting_and_fails_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "DEADLINE_S", 1.0)
    start("e1")
    start("e2").http.post("/twinpool/faults", json={"hang": "steps"})
    row, prober = pair("e1", "e2"), Prober()
    assert prober.start(row.pk)
    assert not prober.start(row.pk), "one pair was probed twice at once"
    row.refresh_from_db()
    assert row.state == "asked", "the caller was kept until the probe had ended"
    until(lambda: models.Pair.objects.filter(pk=row.pk, state="failed").exists())
    row.refresh_from_db()
    assert row.reason == "the decode leg on e2 was not answered in time"
    until(lambda: not prober.open)


def test_a_row_that_means_other_starts_of_its_engines_is_left_alone(start: Start) -> None:
    start("e1")
    other = start("e2")
    row = pair("e1", "e2")
    models.Engine.objects.filter(id="e2").update(incarnation=2)
    assert probed(row).state == "asked"
    assert not other.page().counters["prompt_tokens"]


def test_what_was_seen_of_an_earlier_start_is_not_written(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start("e1")
    start("e2")
    row = pair("e1", "e2")

    async def while_it_restarts(*args: Any) -> handoff.Outcome:
        outcome = await handoff.ask_pair(*args)
        await asyncio.to_thread(another_start)
        return outcome

    def another_start() -> None:
        models.Pair.objects.filter(pk=row.pk).update(decode_incarnation=2)
        connection.close()

    monkeypatch.setattr(probing, "ask_pair", while_it_restarts)
    row = probed(row)
    assert (row.state, row.reason) == ("asked", "")


def test_the_loop_is_woken_once_for_probes_that_end_together_and_waits_for_none_that_hangs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[bool] = []
    monkeypatch.setattr(probing.commands, "wake", lambda: woken.append(True))
    monkeypatch.setattr(probing, "TOGETHER_S", 30.0)
    start("e1")
    start("e2")
    prober = Prober()
    for row in (pair("e1", "e2"), pair("e2", "e1")):
        assert prober.start(row.pk)
    until(lambda: woken)
    assert models.Pair.objects.filter(state="verified").count() == 2
    until(lambda: not prober.open)
    assert len(woken) == 1

    monkeypatch.setattr(probing, "TOGETHER_S", 0.05)
    monkeypatch.setattr(probing, "DEADLINE_S", 20.0)
    hanging = start("e3")
    hanging.http.post("/twinpool/faults", json={"hang": "steps"})
    hung = pair("e1", "e3")
    models.Pair.objects.filter(prefill="e1", decode="e2").update(state="asked")
    assert prober.start(hung.pk)
    assert prober.start(models.Pair.objects.get(prefill="e1", decode="e2").pk)
    until(lambda: len(woken) == 2)
    assert prober.open == 1
    hanging.kill()
    until(lambda: not prober.open)


BUSY = {"speed": 0.2, "max_num_seqs": 1}
"""One request at a time, of about 30 tokens a second."""


@contextmanager
def queue(engine: RunningEngine, requests: int, tokens: int) -> Iterator[None]:
    """So many requests of others are at it; all but two of them, at least, wait there when this begins."""
    with ThreadPoolExecutor(requests) as pool:
        asked = [pool.submit(engine.complete, f"question {number}", max_tokens=tokens) for number in range(requests)]
        until(lambda: engine.metric("vllm:num_requests_waiting{") >= requests - 2)
        yield
        assert {each.result().status_code for each in asked} == {200}


def test_a_probe_that_waits_behind_others_is_no_failed_handoff(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "DEADLINE_S", 4.0)
    monkeypatch.setattr(probing, "TOLD_S", 0.0)
    start("e1")
    busy = start("e2", args=BUSY)
    row, told = pair("e1", "e2"), set[str]()
    with queue(busy, 5, 80):
        prober = Prober()
        assert prober.start(row.pk)
        until(lambda: told.add(models.Pair.objects.get(pk=row.pk).reason) or not prober.open, 120)
    row.refresh_from_db()
    assert row.state == "verified", row.reason
    waits = [each for each in told if each.startswith(BEHIND)]
    assert waits and all(each.endswith(" requests on e2") for each in waits), told


def test_a_handoff_that_hangs_fails_though_others_are_served(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on with others' requests, of which there are ever more: its own turn has come and gone."""
    monkeypatch.setattr(probing, "DEADLINE_S", 4.0)
    start("e1")
    other = start("e2")
    other.http.post("/twinpool/faults", json={"transfer": {"mode": "delay", "delay_s": 3600}})
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            assert other.complete("somebody's question", max_tokens=50).status_code == 200

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking) for _ in range(4)]
        row = probed(pair("e1", "e2"))
        stop.set()
        for each in asking:
            each.result()
    assert (row.state, row.reason) == ("failed", "the decode leg on e2 was not answered in time")


def test_a_full_engine_that_stands_still_is_not_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "DEADLINE_S", 2.0)
    start("e1")
    busy = start("e2", args=BUSY)
    with queue(busy, 3, 40):
        busy.http.post("/twinpool/faults", json={"hang": "steps"})
        row = probed(pair("e1", "e2"))
        busy.http.delete("/twinpool/faults")
    assert (row.state, row.reason) == ("failed", "the decode leg on e2 was not answered in time")


@pytest.mark.parametrize(("policy", "priority"), [("fcfs", None), ("priority", handoff.BEFORE_OTHERS)])
def test_a_probe_goes_before_others_where_engines_know_priorities(
    policy: str, priority: int | None, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere vLLM refuses the field."""
    sent, post = [], EngineClient.post

    async def noted(self: EngineClient, path: str, document: Any, timeout_s: float) -> Any:
        sent.append(document.get("priority"))
        return await post(self, path, document, timeout_s)

    monkeypatch.setattr(EngineClient, "post", noted)
    start("e1")
    start("e2")
    models.Model.objects.update(engine_args={"scheduling_policy": policy})
    assert probed(pair("e1", "e2")).state == "verified"
    assert sent == [priority] * 3

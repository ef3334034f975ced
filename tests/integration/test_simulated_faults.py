"""Faults of real engine processes, as whoever asks for them and whoever suffers them sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.simulated_engines import KEY, MODEL, RunningEngine, running, spec, until

FAULTS = "/twinpool/faults"
PROMPT = list(range(3000, 3100))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    """A prefill and a decode engine that survive their faults."""
    with running(tmp_path_factory.mktemp("p"), spec("p")) as one, running(tmp_path_factory.mktemp("d"), spec("d")) as two:
        yield one, two


@pytest.fixture
def pair(shared: tuple[RunningEngine, RunningEngine]) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    yield shared
    for engine in shared:
        engine.http.delete(FAULTS).raise_for_status()


@pytest.fixture
def engine(pair: tuple[RunningEngine, RunningEngine]) -> RunningEngine:
    return pair[0]


def ask(engine: RunningEngine, **faults: Any) -> dict[str, Any]:
    answer = engine.http.post(FAULTS, json=faults)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["faults"])


def struck(engine: RunningEngine, fault: str) -> float:
    return engine.metric(f'twinpool:faults_total{{engine="0",fault="{fault}"')


# --- asking ---------------------------------------------------------------------------------------------------------------


def test_faults_are_told_and_cleared(engine: RunningEngine) -> None:
    told = ask(engine, slow=2, status={"code": 503, "share": 0.5, "duration_s": 60})
    assert told["slow"] == {"factor": 2.0, "hits": 0}
    assert 59 < engine.http.get(FAULTS).json()["faults"]["status"]["ends_in_s"] <= 60
    assert sorted(engine.http.delete(f"{FAULTS}?fault=slow").json()["faults"]) == ["status"]
    assert engine.http.delete(FAULTS).json() == {"faults": {}}
    assert engine.http.delete(f"{FAULTS}?fault=nonsense").status_code == 400


def test_bad_faults_are_refused_by_field_and_nothing_of_them_is_done(engine: RunningEngine) -> None:
    refused = engine.http.post(FAULTS, json={"slow": -1, "refuse": True, "status": {"code": 99}})
    assert refused.status_code == 400
    document = refused.json()
    assert document["error"]["param"] == "slow.factor"
    assert [problem["field"] for problem in document["problems"]] == ["slow.factor", "status.code"]
    assert engine.http.get(FAULTS).json() == {"faults": {}}
    assert engine.http.post(FAULTS, content=b"{").status_code == 400


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_only_the_engine_key_may_ask(engine: RunningEngine, method: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with httpx.Client(base_url=engine.url, headers=headers, trust_env=False) as stranger:
            assert stranger.request(method, FAULTS, json={"die": True}).status_code == 401
    assert engine.process.poll() is None


def test_an_engine_without_a_key_takes_no_faults(tmp_path: Path) -> None:
    with running(tmp_path, key="") as open_engine:
        assert open_engine.text(PROMPT, max_tokens=1)
        assert open_engine.http.post(FAULTS, json={"die": True}).status_code == 403
        assert open_engine.http.post("/reset_prefix_cache").status_code == 403
        assert open_engine.process.poll() is None


# --- answers --------------------------------------------------------------------------------------------------------------


def test_status_answers_a_share_of_requests_in_vllms_shape(engine: RunningEngine) -> None:
    ask(engine, status={"code": 429, "share": 0.5, "count": 2})
    answers = [engine.complete(PROMPT, max_tokens=1) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 429, 200, 200]
    assert answers[1].json()["error"]["code"] == 429
    assert engine.http.get("/health").status_code == 200


def test_refuse_cuts_connections_and_stays_controllable(engine: RunningEngine) -> None:
    ask(engine, refuse={"count": 2})
    for path in ("/health", "/v1/models"):
        with pytest.raises(httpx.RemoteProtocolError):
            engine.http.get(path)
    assert engine.http.get("/health").status_code == 200
    assert struck(engine, "refuse") == 2


def test_slow_multiplies_the_time_of_steps(engine: RunningEngine) -> None:
    before = engine.metric("vllm:request_decode_time_seconds_sum")
    ask(engine, slow=1000)
    engine.text(PROMPT, max_tokens=3)
    assert engine.metric("vllm:request_decode_time_seconds_sum") - before > 0.3  # two steps of 0.3 ms each


def test_hanging_steps_leave_the_rest_alive_and_go_on_afterwards(engine: RunningEngine) -> None:
    ask(engine, hang=True)
    texts: list[str] = []
    client = threading.Thread(target=lambda: texts.append(engine.text(PROMPT, max_tokens=3)))
    client.start()
    with httpx.Client(base_url=engine.url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False) as other:
        until(
            lambda: "vllm:num_requests_waiting{" in other.get("/metrics").text and other.get("/load").json()["server_load"]
        )
        assert other.get("/health").status_code == 200
        assert texts == []
        other.delete(FAULTS)
    client.join(10)
    assert len(texts) == 1


def test_a_hang_ends_by_itself(engine: RunningEngine) -> None:
    ask(engine, hang={"duration_s": 0.3})
    assert engine.text(PROMPT, max_tokens=3)


def test_a_hanging_process_answers_nothing_for_a_while(engine: RunningEngine) -> None:
    ask(engine, hang={"what": "process", "duration_s": 2.0})
    time.sleep(0.1)
    with pytest.raises(httpx.ReadTimeout):
        engine.http.get("/health", timeout=0.3)
    assert engine.http.get("/health", timeout=10).status_code == 200


def test_stale_metrics_stand_still(engine: RunningEngine) -> None:
    ask(engine, stale_metrics=True)
    before = engine.http.get("/metrics").text
    engine.text(PROMPT, max_tokens=3)
    assert engine.http.get("/metrics").text == before
    engine.http.delete(FAULTS)
    assert engine.http.get("/metrics").text != before


# --- KV -------------------------------------------------------------------------------------------------------------------


def test_a_forgotten_cache_hits_nothing(engine: RunningEngine) -> None:
    engine.text(PROMPT, max_tokens=1)
    before = engine.page().counters["prefix_hits"]
    ask(engine, forget_cache=True)
    engine.text(PROMPT, max_tokens=1)
    assert engine.page().counters["prefix_hits"] == before
    engine.text(PROMPT, max_tokens=1)
    assert engine.page().counters["prefix_hits"] == before + 96


def test_leaked_blocks_are_used_by_nobody_and_come_back(engine: RunningEngine) -> None:
    assert engine.page().kv_usage == 0
    ask(engine, leak_blocks=1 << 30)
    assert engine.page().kv_usage == 1
    with pytest.raises(httpx.ReadTimeout):
        engine.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, timeout=0.3)
    ask(engine, leak_blocks=5)
    assert 0 < engine.page().kv_usage < 0.01
    assert engine.text(PROMPT, max_tokens=1)
    engine.http.delete(FAULTS)
    assert engine.page().kv_usage == 0


def decode(engine: RunningEngine, params: dict[str, Any], **fields: Any) -> httpx.Response:
    return engine.complete(PROMPT, kv_transfer_params=params, temperature=0, **fields)


def test_leases_end_early_as_often_as_asked(pair: tuple[RunningEngine, RunningEngine]) -> None:
    prefill, decoder = pair
    ask(decoder, forget_cache=True)
    expected = prefill.text(PROMPT, temperature=0)
    expired = prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    held = prefill.prefill(PROMPT)
    ask(prefill, expire_early=0)
    until(lambda: prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired + 1)
    late = decode(decoder, held)
    assert late.status_code == 200
    assert late.json()["choices"][0]["text"] != expected
    assert prefill.metric("vllm:nixl_num_notifications_after_expiry_total") >= 1


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_corrupt_transfer_gives_wrong_text_that_only_the_faults_counter_tells(
    pair: tuple[RunningEngine, RunningEngine], where: str
) -> None:
    prefill, decoder = pair
    ask(decoder, forget_cache=True)
    expected = prefill.text(PROMPT, temperature=0)
    side = prefill if where == "prefill" else decoder
    before, failed = struck(side, "transfer"), decoder.metric("vllm:nixl_num_failed_transfers_total")
    ask(side, transfer={"mode": "corrupt", "count": 1})
    wrong = decode(decoder, prefill.prefill(PROMPT))
    assert wrong.status_code == 200
    assert wrong.json()["choices"][0]["text"] != expected
    assert struck(side, "transfer") == before + 1
    assert decoder.metric("vllm:nixl_num_failed_transfers_total") == failed
    poisoned = decode(decoder, prefill.prefill(PROMPT))
    assert poisoned.json()["choices"][0]["text"] != expected  # the cache holds it under its right hash
    ask(decoder, forget_cache=True)
    right = decode(decoder, prefill.prefill(PROMPT))
    assert right.json()["choices"][0]["text"] == expected


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_failed_transfer_fails_its_request_and_is_counted(pair: tuple[RunningEngine, RunningEngine], where: str) -> None:
    prefill, decoder = pair
    ask(decoder, forget_cache=True)
    failed = decoder.metric("vllm:nixl_num_failed_transfers_total")
    ask(prefill if where == "prefill" else decoder, transfer={"mode": "fail", "count": 1})
    assert decode(decoder, prefill.prefill(PROMPT)).status_code == 500
    assert decoder.metric("vllm:nixl_num_failed_transfers_total") == failed + 1
    assert decode(decoder, prefill.prefill(PROMPT)).status_code == 200


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_delayed_transfer_takes_that_much_longer(pair: tuple[RunningEngine, RunningEngine], where: str) -> None:
    prefill, decoder = pair
    ask(decoder, forget_cache=True)
    expected = prefill.text(PROMPT, temperature=0)
    spent = decoder.metric("vllm:nixl_xfer_time_seconds_sum")
    ask(prefill if where == "prefill" else decoder, transfer={"mode": "delay", "delay_s": 0.4, "count": 1})
    answer = decode(decoder, prefill.prefill(PROMPT))
    assert answer.json()["choices"][0]["text"] == expected
    assert decoder.metric("vllm:nixl_xfer_time_seconds_sum") - spent > 0.35


# --- the process ----------------------------------------------------------------------------------------------------------


def test_a_dying_engine_cuts_its_streams(tmp_path: Path) -> None:
    with running(tmp_path, spec(args={"speed": 0.2})) as engine:
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with engine.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data:")
            with httpx.Client(base_url=engine.url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False) as other:
                assert other.post(FAULTS, json={"die": {"after_s": 0.2}}).status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        assert engine.process.wait(10) == 1


def test_a_restart_is_another_start_behind_the_same_ports(tmp_path: Path) -> None:
    with running(tmp_path, spec("p")) as prefill, running(tmp_path, spec("d")) as decoder:
        expected = prefill.text(PROMPT, temperature=0)
        old = prefill.prefill(PROMPT)
        ask(prefill, slow=3, restart={"down_s": 0.3})
        until(lambda: faults_of(prefill) == {})
        assert prefill.process.poll() is None
        assert prefill.page().counters["prefix_hits"] == 0
        assert decode(decoder, old).status_code == 500
        new = prefill.prefill(PROMPT)
        assert (new["remote_port"], new["remote_host"]) == (old["remote_port"], old["remote_host"])
        assert new["remote_engine_id"] != old["remote_engine_id"]
        assert decode(decoder, new).json()["choices"][0]["text"] == expected


def faults_of(engine: RunningEngine) -> Any:
    """None while nobody answers."""
    try:
        return engine.http.get(FAULTS).json()["faults"]
    except httpx.TransportError:
        return None

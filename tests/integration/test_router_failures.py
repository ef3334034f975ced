"""Engines that fail, hang, lie or die: the client gets a right answer or a clear error, and nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol import RequestRow
from controlplane.router import framing, sse
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg, words
from tests.integration.router_kit import (
    QUICK,
    TEXT,
    ask_until,
    fakes,
    hello,
    pair,
    parse_events,
    route_of,
    running,
    split_model,
    text_of,
    until,
    whole_model,
    with_engines,
)

EXPECTED = "".join(words("hello there", 4))
FAULTS = {
    "500": act.answer(500),
    "503": act.answer(503),
    "wrong key": act.answer(401),
    "closed": act.close,
    "garbage": act.garbage,
    "aborted": act.answer(200, {"choices": [{"text": "x", "finish_reason": "abort"}]}),
}
STREAM_FAULTS = {
    "error event": act.break_stream(0, {"error": {"message": "tcp://10.9.8.7:5600"}}, clean=True),
    "abort event": act.break_stream(0, {"choices": [{"index": 0, "text": "x", "finish_reason": "abort"}]}, clean=True),
    "died after the head": act.break_stream(0),
    **{name: FAULTS[name] for name in ("500", "closed")},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_another_engine_takes_over_before_the_first_byte(tmp_path: Path, fault: act.Act) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.acts = [fault]
        engines[1].acts = []
        for response in await ask_until(kit, lambda: not engines[0].acts):
            assert response.status_code == 200, response.text
        await until(kit.idle, "idle")


def streamed(number: int) -> dict[str, Any]:
    return {**hello(number), "stream": True}


@pytest.mark.parametrize("fault", STREAM_FAULTS.values(), ids=STREAM_FAULTS)
async def test_a_stream_that_fails_before_its_first_event_starts_again_elsewhere(tmp_path: Path, fault: act.Act) -> None:
    async with pair(tmp_path) as two:
        for engine in two.decodes:
            engine.acts = [fault]
        two.d2.acts = []
        for number, response in enumerate(await ask_until(two.kit, lambda: not two.d1.acts, streamed)):
            events = parse_events(response.content)
            assert text_of(events) == "".join(words(f"hello {number}", 4))
            assert events[-1] == "[DONE]"
        await until(two.kit.idle, "idle")


async def test_when_all_fail_the_client_is_told_without_an_address(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.always = act.answer(500)
        response = await kit.post(TEXT)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "engine_fault"
        assert "10.9.8.7" not in response.text
        assert route_of(response)["reason"] == "engine_fault"
        assert sum(len(engine.legs) for engine in engines) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_mistake_is_passed_on_and_counts_against_nobody(tmp_path: Path, stream: bool) -> None:
    too_long = {"error": {"message": "maximum context length is 5", "type": "BadRequestError", "code": 400}}
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        two.p1.always = act.answer(400, too_long)
        for _ in range(5):
            response = await two.kit.post({**TEXT, "stream": stream})
            assert (response.status_code, response.json()) == (400, too_long)
            assert "x-request-id" in response.headers
        assert two.d1.legs == []
        assert two.kit.router.set_aside() == ()


async def test_a_dying_decode_ends_the_stream_with_an_error_event(tmp_path: Path) -> None:
    async with pair(tmp_path, decodes=1) as two:
        two.d1.acts = [act.break_stream(2)]
        response = await two.kit.post({**TEXT, "stream": True, "seed": 1})
        events = parse_events(response.content)
        assert text_of(events) == "".join(words("hello there", 2))
        assert events[-1]["error"]["code"] == "engine_fault"
        assert b"[DONE]" not in response.content
        await until(two.kit.idle, "idle")
        assert two.kit.router.counters.failed == 1


async def test_an_error_in_the_middle_hides_the_engines_words(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [act.break_stream(2, {"error": {"message": "tcp://10.9.8.7:5600"}}, clean=True)]
        response = await kit.post({**TEXT, "stream": True})
        assert b"10.9.8.7" not in response.content
        assert b"[DONE]" not in response.content
        assert parse_events(response.content)[-1]["error"]["type"] == "server_error"


async def test_a_stream_without_done_is_not_passed_off_as_whole(tmp_path: Path) -> None:
    async def no_done(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        await act.send_event(leg, act.event(leg.body, "x"))
        leg.writer.write(b"0\r\n\r\n")
        await leg.writer.drain()

    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.acts = [no_done]
        response = await kit.post({**TEXT, "stream": True})
        assert parse_events(response.content)[-1]["error"]


def said_all(*pieces: bytes, dies: bool) -> act.Act:
    """Streams the whole answer and its [DONE], then `pieces`, then dies or ends its message."""

    async def say(engine: FakeEngine, leg: Leg) -> None:
        await act.begin_stream(leg)
        await act.send_event(leg, act.event(leg.body, "all", "stop"))
        await act.send_event(leg, {"choices": [], "usage": act.usage_of(leg.body, 1)})
        for piece in (sse.DONE, *pieces):
            leg.writer.write(framing.chunk(piece))
            await leg.writer.drain()
            await asyncio.sleep(0.05)
        if dies:
            leg.writer.transport.abort()
        else:
            leg.writer.write(framing.LAST_CHUNK)

    return say


AFTER_DONE = {
    "death": said_all(dies=True),
    "[DONE]": said_all(sse.DONE, dies=False),
    "an event": said_all(b'data: {"choices":[{"text":"more"}]}\n\n', dies=False),
    "an error and death": said_all(b'data: {"error":{"message":"x"}}\n\n', dies=True),
    "half an event": said_all(b"data: {", dies=False),
}


@pytest.mark.parametrize("say", AFTER_DONE.values(), ids=AFTER_DONE)
async def test_a_stream_is_over_with_its_done_whatever_its_engine_does_then(tmp_path: Path, say: act.Act) -> None:
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines)) as kit:
        for engine in engines:
            engine.acts = [say]
        *events, done = await kit.events(TEXT)
        assert (text_of(events), len(events), done) == ("all", 1, "[DONE]")
        await until(kit.idle, "idle")
        assert sum(len(engine.generations()) for engine in engines) == 1


async def test_a_failed_prefill_is_tried_elsewhere_and_then_left_to_the_decode_engine(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        two.p1.always = two.p2.always = act.answer(500)
        response = await two.kit.post(TEXT)
        assert response.json()["choices"][0]["text"] == EXPECTED
        assert (route_of(response)["path"], route_of(response)["reason"]) == ("monolithic", "prefill_lost")
        assert len(two.p1.legs) == len(two.p2.legs) == 1


@pytest.mark.parametrize(("fields", "status"), [({"on_prefill_loss": "fail"}, 502), ({"strict": True}, 502)], ids=str)
async def test_a_failed_prefill_fails_the_request_where_that_is_wanted(tmp_path: Path, fields: Any, status: int) -> None:
    async with pair(tmp_path, **fields) as two:
        two.p1.always = two.p2.always = act.answer(500)
        assert (await two.kit.post(TEXT)).status_code == status
        assert two.d1.legs + two.d2.legs == []


async def test_without_a_prefill_engine_a_decode_engine_does_all_unless_strict(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=0) as two:
        response = await two.kit.post(TEXT)
        assert (route_of(response)["path"], route_of(response)["reason"]) == ("monolithic", "prefill_unavailable")
        strict = replace(two.kit.router.directory.table.models[0], strict=True)  # type: ignore[union-attr]
        await two.kit.apply(strict)
        refused = await two.kit.post(TEXT)
        assert (refused.status_code, route_of(refused)["reason"]) == (503, "no_engine")
        assert refused.headers["retry-after"] == "1"


async def test_a_decode_engine_that_cannot_be_reached_is_replaced_with_the_same_kv(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1) as two:
        await two.d1.stop()
        answers = await ask_until(two.kit, two.kit.router.set_aside)
        assert {answer.status_code for answer in answers} == {200}
        assert len(two.p1.generations()) == len(answers)


async def test_kv_that_a_lost_decode_may_have_pulled_is_never_used_again(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1) as two:
        two.d1.always = act.close
        answers = await ask_until(two.kit, two.kit.router.set_aside)
        assert {answer.status_code for answer in answers} == {200}
        used = [leg.body["kv_transfer_params"]["remote_request_id"] for leg in two.d1.generations() + two.d2.generations()]
        assert len(used) == len(set(used))


@pytest.mark.parametrize("status", [503, 500])
async def test_kv_that_a_decode_engine_cannot_have_looked_at_is_used_by_the_next(tmp_path: Path, status: int) -> None:
    async with pair(tmp_path, prefills=1) as two:
        two.d1.acts = [act.answer(status)]
        answers = await ask_until(two.kit, lambda: not two.d1.acts)
        assert {answer.status_code for answer in answers} == {200}
        assert len(two.p1.generations()) == len(answers) + (status == 500)


async def test_retries_end_when_their_budget_does(tmp_path: Path) -> None:
    """All engines fail: after the first few retries most requests ask one engine only."""
    limits = replace(QUICK, soft_faults=10_000, retry_burst=4, retry_jitter_s=0.0)
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines), limits=limits) as kit:
        for engine in engines:
            engine.always = act.answer(500)
        for _ in range(50):
            assert (await kit.post(TEXT)).status_code == 502
        retried = sum(len(engine.generations()) for engine in engines) - 50
        assert 4 < retried <= 4 + 50 * limits.retry_share


async def test_a_failed_engine_is_set_aside_until_it_generates_again(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as (bad, good), running(tmp_path, whole_model(bad, good)) as kit:
        await bad.stop()
        answers = await ask_until(kit, kit.router.set_aside)
        assert {answer.status_code for answer in answers} == {200}
        assert kit.router.set_aside() == ("e1",)
        bad.always = act.answer(500)
        await bad.start()
        await until(lambda: bad.legs, "probed")
        assert kit.router.set_aside() == ("e1",)
        bad.always = None
        await until(lambda: kit.router.set_aside() == (), "used again")
        assert {leg.body["prompt"] for leg in bad.legs} == {"ping"}


async def test_one_bad_answer_sets_nobody_aside_but_a_row_of_them_does(tmp_path: Path) -> None:
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, set_aside_s=60)) as kit,
    ):
        engine.acts = [act.answer(500)] * 2
        assert [(await kit.post(TEXT)).status_code for _ in range(3)] == [502, 502, 200]
        engine.acts = [act.answer(500)] * 3
        assert [(await kit.post(TEXT)).status_code for _ in range(4)] == [502, 502, 502, 503]


async def test_connections_that_went_stale_are_replaced_unseen(tmp_path: Path) -> None:
    limits = replace(QUICK, stale_s=60)
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=limits) as kit:
        await kit.post(TEXT)
        engine.acts = [act.close]  # read, then closed without a byte, as a server does whose idle time is over
        assert (await kit.post(TEXT)).status_code == 200
        assert kit.router.set_aside() == ()
        engine.drop_connections()
        assert (await kit.post(TEXT)).status_code == 200
        assert kit.router.counters.retried == 0


async def test_connections_are_kept_alive(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        for _ in range(5):
            await two.kit.events(TEXT)
        assert (two.p1.connections, two.d1.connections) == (1, 1)


async def test_a_hanging_engine_ends_in_504(tmp_path: Path) -> None:
    limits = replace(QUICK, first_byte_s=0.3)
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=limits) as kit:
        engine.acts = [act.hang]
        response = await kit.post(TEXT)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "engine_timeout")
        await until(lambda: engine.legs[0].cancelled, "cancelled")


@pytest.mark.parametrize("where", ["prefill", "decode", "stream"])
async def test_when_the_client_goes_away_its_legs_are_cancelled(tmp_path: Path, where: str) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        engine = two.p1 if where == "prefill" else two.d1
        engine.acts = [act.hang] if where != "stream" else []
        engine.step_s = 0.05
        body = {**TEXT, "stream": True, "max_tokens": 1000}
        request = asyncio.ensure_future(two.kit.post(body))
        leg = (await until(lambda: engine.legs))[0]
        if where == "stream":
            await asyncio.sleep(0.2)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: leg.cancelled, "cancelled")
        await until(two.kit.idle, "idle")
        assert engine.connections == 1
        if where == "decode":
            assert two.kit.router.ledger.totals["client_gone"] == 1
            assert [load.handoffs for load in two.kit.router.loads() if load.engine == "p1"] == [1]


async def test_a_prefill_that_ended_at_once_leaves_nothing_to_pull(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        two.p1.acts = [act.answer(200, {"choices": [{}], "usage": {"prompt_tokens": 3}, "kv_transfer_params": None})]
        response = await two.kit.post(TEXT)
        assert route_of(response)["reason"] == "no_kv"
        assert "kv_transfer_params" not in two.d1.legs[0].body
        assert response.json()["choices"][0]["text"] == EXPECTED


async def test_an_engine_that_leaves_the_table_finishes_its_streams(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as (old, new), running(tmp_path, whole_model(old)) as kit:
        old.step_s = 0.02
        request = asyncio.ensure_future(kit.events({**TEXT, "max_tokens": 20}))
        await until(lambda: old.legs)
        await kit.apply(whole_model(new))
        await kit.post(TEXT)
        events = await request
        assert events[-1] == "[DONE]"
        assert len(old.legs) == len(new.legs) == 1
        await until(lambda: [load.engine for load in kit.router.loads()] == ["e2"], "forgotten")


async def test_an_engine_that_comes_back_with_a_stream_open_has_that_load_still(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as (e1, e2), running(tmp_path, whole_model(e1)) as kit:
        e1.step_s = 0.01
        stream = asyncio.ensure_future(kit.events({**TEXT, "max_tokens": 10_000}))
        await until(lambda: e1.legs)
        await kit.apply(whole_model(e2))
        await kit.apply(whole_model(e1, e2))
        assert [(load.engine, load.in_flight) for load in kit.router.loads()] == [("e1", 1), ("e2", 0)]
        for number in range(3):
            assert route_of(await kit.post({**TEXT, "prompt": f"{number}"}))["decode"] == "e2"
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        await until(kit.idle, "idle")
        await kit.apply(whole_model(e1))
        connections = e1.connections
        for _ in range(3):
            assert route_of(await kit.post(TEXT))["decode"] == "e1"
        assert e1.connections <= connections + 1  # kept alive again


async def test_two_starts_of_an_engine_are_one_line_in_metrics(tmp_path: Path) -> None:
    async with fakes("e1") as (e1,), running(tmp_path, whole_model(e1)) as kit:
        e1.step_s = 3600
        first = asyncio.ensure_future(kit.events(TEXT))
        await until(lambda: len(e1.legs) == 1)
        await kit.apply(with_engines(whole_model(e1), lambda engine: replace(engine, incarnation=2)))
        second = asyncio.ensure_future(kit.events(TEXT))
        await until(lambda: len(e1.legs) == 2)
        page = (await kit.client.get(kit.url + "/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith("twinpool_router_engine_in_flight")]
        assert lines == ['twinpool_router_engine_in_flight{engine="e1"} 2']
        for stream in (first, second):
            stream.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_an_engine_that_left_during_the_prefill_gets_no_decode_leg(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        applied = asyncio.Event()
        two.p1.acts = [act.once(applied.wait)]
        request = asyncio.ensure_future(two.kit.post(TEXT))
        await until(lambda: two.p1.legs)
        await two.kit.apply(split_model([two.p1], [two.d2]))
        applied.set()
        assert route_of(await request)["decode"] == "d2"
        assert two.d1.legs == []


async def test_two_requests_at_once_under_one_id_are_kept_apart(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.step_s = 0.02
        bodies = [{**TEXT, "stream": True}] * 3
        answers = await asyncio.gather(*(kit.post(body, "/v1/completions", **{"x-request-id": "same"}) for body in bodies))
        assert len({answer.headers["x-request-id"] for answer in answers}) == 3
        assert len({leg.headers["x-request-id"] for leg in engine.legs}) == 3


def raw_answer(head: str, body: bytes = b"", end: bool = True) -> act.Act:
    """Any bytes as an answer; with `end` the connection is closed after them."""

    async def answer(engine: FakeEngine, leg: Leg) -> None:
        leg.writer.write(f"HTTP/1.1 {head}\r\n\r\n".encode() + body)
        await leg.writer.drain()
        if end:
            leg.writer.close()
        await asyncio.sleep(3600)

    return answer


def dribble(begin: bytes, piece: bytes) -> act.Act:
    async def answer(engine: FakeEngine, leg: Leg) -> None:
        leg.writer.write(begin)
        while True:
            leg.writer.write(piece)
            await leg.writer.drain()
            await asyncio.sleep(0.05)

    return answer


JSON_HEAD = "200 OK\r\ncontent-type: application/json"
LIES = {
    "101": raw_answer("101 Switching\r\nconnection: upgrade\r\nupgrade: x"),
    "201": act.answer(201, {"choices": [{"text": "a"}]}),
    "204": raw_answer("204 No Content", end=False),
    "two codings": raw_answer(
        JSON_HEAD + "\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n", end=False
    ),
    "no length and cut": raw_answer(JSON_HEAD, b'{"choices":[{"text":"a'),
    "no length": raw_answer(JSON_HEAD, b'{"choices":[{"text":"a"}]}'),
    "empty": raw_answer(JSON_HEAD + "\r\ncontent-length: 0", end=False),
    "not JSON": raw_answer(JSON_HEAD + "\r\ncontent-length: 4", b"<ok>", end=False),
    "error with 200": act.answer(200, {"error": {"message": "tcp://10.9.8.7:5600"}}),
    "endless 102": dribble(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "endless trailers": dribble(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x: " + b"y" * 200 + b"\r\n"
    ),
    "dribbled body": dribble(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{", b" "),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_what_is_no_answer_is_never_passed_off_as_one(tmp_path: Path, lie: act.Act) -> None:
    limits = replace(QUICK, first_byte_s=2.0)
    async with fakes("e1", "e2") as engines, running(tmp_path, whole_model(*engines), limits=limits) as kit:
        engines[0].always = lie
        while not engines[0].legs:
            response = await kit.post(TEXT)
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["text"] == EXPECTED


REFUSALS = {
    "html": (b"<html>tcp://10.9.8.7:5600</html>", "The engine refused this request."),
    "detail": (b'{"detail":"Too many images"}', "Too many images"),
    "details": (b'{"detail":[{"loc":["x"]}]}', "The engine refused this request."),
    "old vLLM": (b'{"object":"error","message":"max_tokens is 5","code":400}', "max_tokens is 5"),
}


@pytest.mark.parametrize(("body", "message"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_is_always_openai_shaped(tmp_path: Path, body: bytes, message: str) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        engine.always = raw_answer(f"400 X\r\ncontent-type: text/html\r\ncontent-length: {len(body)}", body, end=False)
        response = await kit.post(TEXT)
        assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
        assert response.json()["error"]["message"] == message


async def test_a_stream_that_breaks_off_is_told_with_what_went_out(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        rows: list[RequestRow] = []
        two.kit.router.telemetry.request = rows.append  # type: ignore[assignment, method-assign]
        two.d1.acts = [act.break_stream(3)]
        await two.kit.post({**TEXT, "stream": True, "seed": 1})
        two.d1.step_s = 0.05
        async with two.kit.client.stream("POST", two.kit.url + "/v1/completions", json={**TEXT, "stream": True}) as answer:
            await anext(answer.aiter_bytes())
        await until(lambda: len(rows) == 2)
        assert [row.outcome for row in rows] == ["cut", "cancelled"]
        assert rows[0].output_tokens == 3
        assert all(row.ttft_ms and row.prompt_tokens and row.output_tokens for row in rows)


async def test_a_request_that_breaks_engines_is_shown_to_two_of_them(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        for engine in (*two.prefills, *two.decodes):
            engine.always = act.close
        response = await two.kit.post(TEXT)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_fault")
        assert sum(len(engine.generations()) for engine in (*two.prefills, *two.decodes)) == 2


HASTY = replace(QUICK, silent_s=0.3, health_s=1.0, set_aside_s=60)


@pytest.mark.parametrize("stream", [False, True])
async def test_legs_of_a_hung_engine_are_taken_over_and_it_is_set_aside(tmp_path: Path, stream: bool) -> None:
    async with pair(tmp_path, limits=HASTY) as two:
        two.p1.hung = two.d1.hung = True
        while two.kit.router.set_aside() != ("p1", "d1"):  # which of equal engines takes a leg is chance
            asked = (two.kit.post({**TEXT, "prompt": f"x{number}", "stream": stream}) for number in range(16))
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_a_request_that_met_a_hung_engine_is_not_given_to_another(tmp_path: Path) -> None:
    async with pair(tmp_path, limits=HASTY) as two:
        for engine in (two.p1, two.p2, two.d1):
            engine.hung = True
        response = await two.kit.post(TEXT)
        assert (response.status_code, route_of(response)["decode"]) == (200, "d2")
        assert sum(len(engine.generations()) for engine in (two.p1, two.p2, two.d1)) == 1


async def test_time_in_which_the_router_did_not_run_is_not_held_against_an_engine(tmp_path: Path) -> None:
    limits = replace(QUICK, first_byte_s=1.0, silent_s=1.0, health_s=1.0, soft_faults=1)
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=limits) as kit:
        engine.acts = [act.later(0.2)]
        asyncio.get_running_loop().call_later(0.1, time.sleep, 3.0)
        assert (await kit.post(TEXT)).status_code == 200
        assert kit.router.set_aside() == ()


async def test_a_hung_engine_is_noticed_though_its_clients_are_impatient(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), limits=HASTY) as kit:
        engine.hung = True

        async def give_up() -> bool:
            request = asyncio.ensure_future(kit.post(TEXT))
            await asyncio.sleep(1.5)  # more than a moment's silence
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            return kit.router.set_aside() == ("e1",)

        async with asyncio.timeout(60):
            while not await give_up():
                pass


async def test_an_engine_that_only_takes_its_time_is_left_alone(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, limits=HASTY) as two:
        two.p1.acts = [act.once(lambda: until(lambda: [leg for leg in two.p1.legs if leg.path == "/health" and leg.done]))]
        response = await two.kit.post(TEXT)
        assert route_of(response)["reason"] == "disaggregated"
        assert two.kit.router.set_aside() == ()

"""The router's parts that do no I/O: framing, events, bodies, fields, breaker, ledger, outbox, expiry page."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.codec import decode
from controlplane.core.protocol import Record, RequestRow, RouterRow, UsageRow
from controlplane.router import bodies, expiry, fields, framing, seam, sse, telemetry, usage
from controlplane.router.breaker import Breaker
from controlplane.router.errors import ApiError
from controlplane.router.ledger import Ledger
from controlplane.router.limits import Limits
from controlplane.router.paths import ENDPOINTS, normalise
from controlplane.router.telemetry import Outbox

LIMITS = Limits()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


# --- framing and events ---


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=150, deadline=None)
def test_chunks_come_apart_wherever_the_network_cuts_them(parts: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nx: y\r\n\r\n"
    reader = framing.Chunked()
    got = b"".join(reader.feed(piece) for piece in cut(wire, cuts))
    assert got == b"".join(parts)
    assert reader.ended


def test_a_read_of_whole_chunks_may_be_passed_on_as_it_came() -> None:
    reader = framing.Chunked()
    assert (reader.feed(b"3\r\nabc\r\n"), reader.as_it_came) == (b"abc", True)
    assert (reader.feed(b"3\r\nabc\r\n2\r\nde\r\n"), reader.as_it_came) == (b"abcde", True)
    assert (reader.feed(b"3\r\nabc\r\n2\r\n"), reader.as_it_came) == (b"abc", False)


@pytest.mark.parametrize(
    "wire", [b"zz\r\n", b"-1\r\n", b"1_0\r\n", b"0x1\r\n", b"\r\n\r\n", b"2\r\nabc\r\n", b"0\r\n\r\nmore", b"1" * 300]
)
def test_broken_chunks_are_noticed(wire: bytes) -> None:
    with pytest.raises(framing.BadFraming):
        framing.Chunked().feed(wire)


EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a \\"usage\\":{ b"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9"},"finish_reason":"stop"}],"usage":null}\n\n'
)
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":7}}}\n\n'
)


@given(st.lists(st.integers(0, 1000), max_size=12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_events_are_the_same_wherever_they_are_cut(cuts: list[int], strip: bool) -> None:
    watch = sse.EventWatch(strip, 10_000)
    out = b"".join(watch.feed(piece) for piece in cut(EVENTS + USAGE + sse.DONE, cuts)) + watch.finish()
    assert out == EVENTS + (b"" if strip else USAGE) + sse.DONE
    assert watch.done
    assert not watch.error
    assert usage.of_document(watch.usage).prompt == 7


def test_the_prefills_details_replace_the_decode_engines() -> None:
    watch = sse.EventWatch(False, 10_000, b'{"cached_tokens":3}')
    assert b'"prompt_tokens_details":{"cached_tokens":3}' in watch.feed(USAGE)
    whole = b'{"choices":[{"text":"\\"usage\\""}],"usage":{"prompt_tokens_details":null,"prompt_tokens":4}}'
    assert json.loads(usage.with_details(whole, b'{"cached_tokens":3}'))["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 3
    }
    assert usage.with_details(whole, None) == whole


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"x"}}\n\n',
        b'data: {"object":"error"}\n\n',
        b'data: {"choices":[{"finish_reason":"abort"}]}\n\n',
    ],
)
def test_an_engines_failure_inside_a_stream_is_noticed(event: bytes) -> None:
    watch = sse.EventWatch(True, 10_000)
    assert watch.feed(EVENTS + event + sse.DONE) == EVENTS
    assert watch.error
    assert not watch.done


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b": hm\ndata: [DONE]\n\n"])
@given(st.lists(st.integers(0, 1000), max_size=12))
@settings(max_examples=50, deadline=None)
def test_nothing_comes_after_the_last_event(done: bytes, cuts: list[int]) -> None:
    watch = sse.EventWatch(True, 10_000)
    wire = EVENTS + done + EVENTS + b'data: {"error":1}\n\n' + sse.DONE + b"data: {"
    assert b"".join(map(watch.feed, cut(wire, cuts))) + watch.finish() == EVENTS + done
    assert (watch.done, watch.error) == (True, False)


def test_a_text_about_the_last_event_is_not_it() -> None:
    watch = sse.EventWatch(True, 10_000)
    text = b'data: {"choices":[{"delta":{"content":"data: [DONE]\\n\\n"}}]}\n\n'
    assert watch.feed(text) == text
    assert not watch.done


def test_an_event_in_several_lines_is_read_like_any_other() -> None:
    watch = sse.EventWatch(True, 10_000)
    assert watch.feed(USAGE.replace(b'"usage"', b'\ndata: "usage"')) == b""
    assert usage.of_document(watch.usage).prompt == 7
    assert watch.feed(b'data: {"id":"x",\ndata: "error":{"message":"x"}}\n\n') == b""
    assert watch.error


def test_a_text_about_errors_is_no_error() -> None:
    watch = sse.EventWatch(True, 10_000)
    text = orjson.dumps({"choices": [{"delta": {"content": '{"error": {"x": 1}} "finish_reason":"abort"'}}]})
    assert watch.feed(b"data: %b\n\n" % text)
    assert not watch.error


def test_an_endless_event_is_not_kept() -> None:
    watch = sse.EventWatch(True, 100)
    assert watch.feed(b"data: " + b"x" * 200) == b"data: " + b"x" * 200
    assert watch.finish() == b""


@pytest.mark.parametrize(
    "event",
    [b'data: { "error" : {"message": "x"}}', b'event: error\ndata: {"message":"x"}', b'data: {"object" : "error"}',
     b'data: {"choices":[{"finish_reason" : "abort"}]}'],
)  # fmt: skip
def test_an_error_is_known_however_it_is_spelled(event: bytes) -> None:
    watch = sse.EventWatch(True, 10_000)
    assert (watch.feed(EVENTS + event + b"\n\n"), watch.error) == (EVENTS, True)


def test_words_of_a_model_are_no_errors() -> None:
    said = b'data: {"choices":[{"text":"error","finish_reason":null},{"text":"event: error abort"}]}\n\n'
    watch = sse.EventWatch(True, 10_000)
    assert (watch.feed(said), watch.error) == (said, False)


# --- bodies and fields ---


def parsed(**body: Any) -> bodies.Body:
    return bodies.parse(orjson.dumps({"model": "m", **body}), LIMITS)


def test_new_fields_are_spliced_into_the_clients_bytes() -> None:
    body = bodies.parse(b' {"model":"m", "stream":true, "x":1.50 }\n', LIMITS)
    sent = bodies.answer_bytes(body, {"a": 1})
    assert sent.startswith(b' {"model":"m", "stream":true, "x":1.50 ,')
    assert json.loads(sent) == {
        "model": "m", "stream": True, "x": 1.5, "kv_transfer_params": {"a": 1}, "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_the_clients_own_stream_options_are_kept() -> None:
    body = parsed(stream=True, stream_options={"include_usage": False, "chunk_size": 3})
    assert json.loads(bodies.answer_bytes(body))["stream_options"] == {"include_usage": True, "chunk_size": 3}
    assert json.loads(bodies.answer_bytes(parsed(stream=True), ask_usage=False)) == {"model": "m", "stream": True}


@pytest.mark.parametrize(
    ("options", "asked", "sent"),
    [
        ({"include_usage": 1}, True, {"include_usage": 1}),
        ({"include_usage": "True"}, True, {"include_usage": "True"}),
        ({"include_usage": 0, "a": 1}, False, {"include_usage": True, "a": 1}),
        ({}, False, {"include_usage": True}),
        (None, False, {"include_usage": True}),
        ({"include_usage": "perhaps"}, False, {"include_usage": "perhaps"}),
        ({"include_usage": [1]}, False, {"include_usage": [1]}),
        ("yes", False, "yes"),
        ([], False, []),
    ],
)
def test_the_wish_for_usage_is_read_as_engines_do_and_mistakes_are_left_to_them(
    options: Any, asked: bool, sent: Any
) -> None:
    body = parsed(stream=True, stream_options=options)
    assert body.asked_usage is asked
    assert json.loads(bodies.answer_bytes(body))["stream_options"] == sent


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1,"])
def test_a_body_of_too_many_parts_is_not_even_read(part: bytes) -> None:
    with pytest.raises(ApiError, match="too many parts"):
        bodies.parse(b'{"model":"m","x":[' + part * 2_000_001 + b"0]}", LIMITS)


SAFE: list[dict[str, Any]] = [
    {"tools": [{"type": "namespace", "tools": [{"type": "function", "parameters": {"properties": {"dp_rank": {}}}}]}]},
    {"documents": [{"title": "x", "bootstrap_host": "y"}], "metadata": {"request_id": "mine"}},
    {"response_format": {"type": "structural_tag", "structures": [{"begin": "<", "schema": {"dp_rank": {}}}], "format": {}}},
    {"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"kv_transfer_params": {}}}}}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "bootstrap_host": 1}]}]},
    {"tools": [{"function": {"parameters": {"properties": {"data_parallel_rank": {}}}}}]},
    {"messages": [{"tool_calls": [{"function": {"arguments": {"kv_transfer_params": 1}}}]}]},
    {"response_format": {"json_schema": {"schema": {"kv_transfer_params": {}}}}},
    {"prompt": "kv_transfer_params"},
]
UNSAFE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kv_transfer_params": 1, "a": 2}, {"a": 2}),
    ({"vllm_xargs": {"kv_transfer_params": 1, "ec_transfer_params": 1, "k": 0}}, {"vllm_xargs": {"k": 0}}),
    ({"messages": [{"role": "user", "kv_transfer_params": 1}]}, {"messages": [{"role": "user"}]}),
    ({"content": {"kv_transfer_params": 1}}, {"content": {}}),
    ({"request_id": "somebody's", "metadata": {"request_id": "mine"}}, {"metadata": {"request_id": "mine"}}),
    ({"schema": [[{"Bootstrap-Room": 1}]]}, {"schema": [[{}]]}),
    ({"KV_Transfer_Params": 1, "a": {"DP-RANK": 1}}, {"a": {}}),
    ({"a": {"messages": {"content": {"dp_rank": 1}}}}, {"a": {"messages": {"content": {}}}}),
]


@pytest.mark.parametrize("body", SAFE, ids=str)
def test_a_clients_own_material_is_left_alone(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert not fields.strip(body, 100)
    assert json.dumps(body) == before


@pytest.mark.parametrize(("body", "left"), UNSAFE, ids=str)
def test_unsafe_keys_go_wherever_they_are(body: dict[str, Any], left: dict[str, Any]) -> None:
    assert fields.strip(body, 100)
    assert body == left


@pytest.mark.parametrize("depth", [99, 200])
def test_depth_is_bounded_everywhere(depth: int) -> None:
    raw = b'{"model":"m","prompt":' + b"[" * depth + b"]" * depth + b"}"
    if depth < 100:
        bodies.parse(raw, LIMITS)
    else:
        with pytest.raises(ApiError, match="deep"):
            bodies.parse(raw, LIMITS)


def test_tokens_are_estimated_from_text_and_counted_from_ids() -> None:
    assert bodies.prompt_tokens({"prompt": "x" * 400}) == 101
    assert bodies.prompt_tokens({"prompt": [1, 2, 3]}) == 3
    assert (
        bodies.prompt_tokens({"messages": [{"content": "x" * 40}, {"content": [{"type": "text", "text": "y" * 40}]}]}) == 22
    )
    assert bodies.prompt_tokens({"messages": "odd", "prompt": None}) == 1
    assert bodies.output_tokens({"max_tokens": 5}, 300) == 5
    assert bodies.output_tokens({"max_tokens": "5"}, 300) == 300


# --- paths ---


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_path_is_found_under_any_spelling(path: str) -> None:
    for spelling in (path, path + "/", "/x/.." + path, path.replace("/", "//"), path + "?a=b", "http://host:1" + path):
        assert normalise(spelling.encode()) == path


@given(st.binary(max_size=60))
def test_no_target_breaks_the_lookup(target: bytes) -> None:
    assert normalise(target) is None or normalise(target) in ENDPOINTS


# --- breaker ---


def test_an_engine_comes_back_by_a_good_probe_only_and_waits_longer_each_time() -> None:
    breaker = Breaker(Limits(set_aside_s=1, set_aside_max_s=3, soft_faults=3))
    assert not breaker.fault(False, 0)
    breaker.success()
    assert [breaker.fault(False, 0) for _ in range(3)] == [False, False, True]
    breaker.success()
    assert breaker.open
    assert not breaker.probe_due(0.9)
    times = []
    now = 1.0
    for _ in range(4):
        assert breaker.probe_due(now)
        breaker.probing = True
        assert not breaker.probe_due(now)
        breaker.probed(False, now)
        times.append(breaker.probe_at - now)
        now = breaker.probe_at
    assert times == [2, 3, 3, 3]
    breaker.probed(True, now)
    assert not breaker.open
    assert breaker.fault(True, now)


# --- ledger ---


def test_a_handoff_ends_by_an_event_and_stranded_kv_with_its_lease() -> None:
    ledger = Ledger()
    first = ledger.open("r1", "p", 1, 100, 30, now=0)
    second = ledger.open("r2", "p", 1, 100, 30, now=0)
    second.decode = "d"
    ledger.sweep(1000)
    assert ledger.open_by_owner() == {("p", 1): 2}
    ledger.end(first, "pulled", 5)
    ledger.end(first, "stranded", 6)
    assert ledger.totals == {"pulled": 1}
    ledger.end(second, "stranded", 20)
    ledger.sweep(49)
    assert len(ledger) == 1
    ledger.sweep(50)
    assert len(ledger) == 0
    assert ledger.totals == {"pulled": 1, "stranded": 1}


# --- telemetry ---


def request_row(number: int) -> RequestRow:
    return RequestRow(str(number), "m", "monolithic", "monolithic", 200, "ok", 1.0, itl_ms=(1.0, 2.5))


def test_rows_are_sent_in_batches_that_decode() -> None:
    outbox = Outbox("r")
    outbox.router(RouterRow("r", 1, 2, 3, 4, 5))
    for number in range(telemetry.BATCH_ROWS + 1):
        outbox.request(request_row(number))
    records = []
    while (message := outbox.next_message()) is not None:
        assert outbox.next_message() == message
        records.append(decode(Record, msgpack.unpackb(message)))
        outbox.confirmed()
    assert [(record.kind, len(record.rows), record.seq) for record in records] == [
        ("router", 1, 1), ("request", telemetry.BATCH_ROWS, 2), ("request", 1, 3),
    ]  # fmt: skip
    assert decode(RequestRow, records[1].rows[0]) == request_row(0)


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    outbox = Outbox("r")
    for number in range(telemetry.KEPT_ROWS + 7):
        outbox.request(request_row(number))
    assert outbox.dropped == 7


def used(message: bytes | None) -> list[UsageRow]:
    record = decode(Record, msgpack.unpackb(message or b""))
    assert record.kind == "usage"
    return [decode(UsageRow, row) for row in record.rows]


def test_what_untold_requests_used_is_sent_as_sums_and_nothing_of_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "KEPT_ROWS", 2)
    outbox = Outbox("r")
    for tokens in (100, 23):
        outbox.untold("m", "search", "k1", usage.Usage(tokens, 2, 500, None))
    outbox.untold("n", "", "", usage.Usage())
    message = outbox.next_message()
    first, second = used(message)
    assert first == UsageRow(first.at, "m", "search", "k1", 2, 123, 4, 123) and second == UsageRow(
        first.at, "n", "", "", 1, 0, 0, 0
    )
    outbox.untold("m", "search", "k1", usage.Usage(7, 1))
    assert outbox.next_message() == message, "the same until it is confirmed"
    outbox.confirmed()
    monkeypatch.setattr(telemetry, "UNTOLD_EVERY_S", 1e9)
    assert outbox.next_message() is None, "not before its second"
    (third,) = used(outbox.next_message(last=True))
    assert (third.requests, third.prompt_tokens) == (1, 7) and third.at > first.at
    outbox.confirmed()
    for outcome, prompt in (("ok", 10), ("client_error", 99), ("ok", 1), ("ok", 1)):
        outbox.request(replace(request_row(1), outcome=outcome, prompt_tokens=prompt, output_tokens=3))  # type: ignore[arg-type]
    (dropped,) = used(outbox.next_message(last=True))
    assert outbox.dropped == 2 and (dropped.requests, dropped.prompt_tokens, dropped.output_tokens) == (1, 10, 3)


# --- usage and expiry ---


def test_counts_are_read_from_the_bytes_of_an_answer() -> None:
    text = b'"text":"usage \\"usage\\":{\\"prompt_tokens\\":9}"'
    body = b'{"choices":[{%b}],"usage":{"prompt_tokens": 5,"completion_tokens":2}}' % text
    assert (usage.of_body(body).prompt, usage.of_body(body).output, usage.of_body(body).cached) == (5, 2, None)
    assert usage.of_body(b"{}") == usage.Usage()
    assert usage.of_document({"prompt_tokens": -1, "completion_tokens": True}) == usage.Usage()


@pytest.mark.parametrize("count", [10**9 + 1, 2**63 - 1, 2**64 - 1, 10**30])
def test_counts_that_cannot_be_are_not_known(count: int) -> None:
    told = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    assert usage.of_document(told)[:3] == (None, None, None)
    assert usage.of_body(json.dumps({"usage": told}).encode())[:3] == (None, None, None)
    rest = seam.Seam(seam.Sent({}), 3, None, "").rewrite(b'data: {"choices":[],"usage":%b}\n\n' % orjson.dumps({
        **told, "prompt_tokens": 2**64 - 1, "completion_tokens": 2**64 - 1, "prompt_tokens_details": None,
    }))  # fmt: skip
    assert b'"prompt_tokens":18446744073709551615' in rest


def test_the_expiry_counter_is_read_from_a_real_page() -> None:
    page = (Path(__file__).parents[1] / "data" / "vllm_metrics_page.txt").read_bytes()
    assert expiry.parse(page) == 0.0
    name = b"vllm:nixl_num_kv_expired_reqs_total"
    assert expiry.parse(b'# TYPE x\n%b{a="}"} 2.0\n%b 1e1\n' % (name, name)) == 12.0
    assert expiry.parse(b"%b NaN\n" % name) is expiry.parse(b"%b 1e999\n%b 1\n" % (name, name)) is None
    assert expiry.parse(b"%b_other 3\n" % name) is None
    assert expiry.parse(b"%b x\n" % name) is None
    assert expiry.parse(b"") is None


SPLIT = [
    {"n": 1}, {"n": None}, {"min_tokens": 4, "max_tokens": 4}, {"min_tokens": 0}, {"stop": ["x"]},
    {"seed": 3}, {"logprobs": 2},
    {"stream": 1, "stream_options": {"include_usage": "yes"}}, {"stream": None, "stream_options": {}}, {"tools": [{}]},
    {"max_tokens": None, "max_completion_tokens": 7}, {"response_format": {"type": "json_object"}}, {"priority": -1},
    {"structured_outputs": {"regex": "a"}}, {"prompt": [[1, 2]]}, {"tool_choice": "auto"}, {"cache_salt": "s"},
    {"user": "u"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, "y"]}]}, {"messages": ["odd"]}, {"lora": 1},
]  # fmt: skip
WHOLE = [
    {"n": 2}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"best_of": 2}, {"echo": True}, {"echo": 0}, {"prompt_logprobs": 0},
    {"prompt_embeds": "x"}, {"suffix": "x"}, {"use_beam_search": True}, {"tool_choice": "required"}, {"tool_choice": {}},
    {"truncate_prompt_tokens": -1}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 2.0}, {"max_tokens": "2"},
    {"max_completion_tokens": True}, {"min_tokens": None}, {"min_tokens": -1}, {"min_tokens": "1"}, {"stream": "perhaps"},
    {"min_tokens": 5, "max_tokens": 4}, {"min_tokens": 5, "max_completion_tokens": 4}, {"stream_options": {"a": 1}},
    {"stream": True, "stream_options": "yes"}, {"stream": True, "stream_options": {"include_usage": 7}},
    {"stream": True, "stream_options": {"continuous_usage_stats": "x"}}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]},
    {"prompt": []}, {"prompt": [1, "a"]}, {"prompt": [1, True]}, {"routed_experts_prompt_start": 3},
    {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    {"messages": [{"content": [{"type": "input_audio", "input_audio": {}}]}]}, {"messages": [{"content": [{"text": "x"}]}]},
    {"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}]},
]  # fmt: skip


@pytest.mark.parametrize("extra", SPLIT, ids=str)
def test_what_means_the_same_on_two_engines_is_split(extra: dict[str, Any]) -> None:
    assert bodies.splittable({"model": "m", "prompt": "x", "max_tokens": 9, **extra})


@pytest.mark.parametrize("extra", WHOLE, ids=str)
def test_what_might_not_goes_to_one_engine(extra: dict[str, Any]) -> None:
    assert not bodies.splittable({"model": "m", "prompt": "x", "max_tokens": 9, **extra})


def test_what_the_client_would_not_have_got_is_not_asked_for_with_the_usage() -> None:
    options = {"continuous_usage_stats": True}
    assert json.loads(bodies.answer_bytes(parsed(stream="true", stream_options=options)))["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": False,
    }
    wanted = {"include_usage": True, **options}
    assert json.loads(bodies.answer_bytes(parsed(stream=True, stream_options=wanted)))["stream_options"] == wanted


def test_responses_and_messages_are_counted_too() -> None:
    body = b'{"output":[{"text":"\\"usage\\":{\\"input_tokens\\":9}"}],"usage":{"input_tokens":7,"input_tokens_details":'
    body += b'{"cached_tokens":2},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":10}}'
    found = usage.of_body(body)
    assert (found.prompt, found.output, found.cached) == (7, 3, 2)
    found = usage.of_document(json.loads(body)["usage"])
    assert (found.prompt, found.output, found.cached) == (7, 3, 2)
    message = {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": None}
    for found in (usage.of_document(message), usage.of_body(json.dumps({"usage": message}).encode())):
        assert (found.prompt, found.output, found.cached) == (7, 3, 2)


@pytest.mark.parametrize("inside", ["usage", "response", "message"])
def test_the_usage_of_other_streams_is_seen_and_left_where_it_is(inside: str) -> None:
    counts = {"input_tokens": 5, "output_tokens": 3}
    event = b"event: x\ndata: %b\n\n" % orjson.dumps({"usage": counts} if inside == "usage" else {inside: {"usage": counts}})
    watch = sse.EventWatch(False, 1000, tells_usage=sse.USAGE_OF_OTHERS)
    assert watch.feed(event) == event
    assert watch.usage == counts
    assert not watch.error

"""What a client must not be able to do: steer, poison or learn about engines; and what it is told when refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol import KeyEntry
from tests.integration.router_kit import CHAT, QUICK, TEXT, fakes, pair, route_of, running, whole_model
from tests.integration.router_raw import exchange

POISON = {"do_remote_prefill": True}


@pytest.mark.parametrize(
    "extra",
    [
        {"kv_transfer_params": POISON},
        {"ec_transfer_params": POISON},
        {"vllm_xargs": {"kv_transfer_params": POISON, "ok": 1}},
        {"extra_body": {"deep": [{"kv_transfer_params": POISON}]}},
        {"data_parallel_rank": 3},
        {"bootstrap_host": "x", "bootstrap_room": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_unsafe_fields_reach_no_engine(tmp_path: Path, extra: dict[str, Any], stream: bool) -> None:
    async with pair(tmp_path) as two:
        response = await two.kit.post({**TEXT, **extra, "stream": stream})
        assert response.status_code == 200
        for engine in two.prefills + two.decodes:
            for leg in engine.legs:
                ours = leg.body.pop("kv_transfer_params")
                assert ours.get("do_remote_decode") or ours["remote_engine_id"].startswith("p")
                rest = json.dumps(leg.body)
                assert not [word for word in ("transfer_params", "do_remote", "data_parallel", "bootstrap") if word in rest]


async def test_an_unsafe_key_in_disguise_is_found(tmp_path: Path) -> None:
    raw = b'{"model":"m","prompt":"x","vllm_xargs":{"kv\\u005ftransfer_params":{"do_remote_prefill":true}}}'
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        assert (await kit.post(raw)).status_code == 200
        assert engine.legs[0].body == {"model": "m", "prompt": "x", "vllm_xargs": {}}


async def test_words_of_the_user_are_not_touched(tmp_path: Path) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"bootstrap_host": {"type": "string"}}}},
    }
    body = {
        **CHAT,
        "messages": [{"role": "user", "content": '{"kv_transfer_params": 1}'}, {"role": "user", "content": [
            {"type": "text", "text": "x", "data_parallel_rank": 1}]}],
        "tools": [tool],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"kv_transfer_params": {}}}}},
    }  # fmt: skip
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        await kit.post(body, "/v1/chat/completions")
        assert engine.legs[0].body == body


async def test_only_a_closed_list_of_headers_passes(tmp_path: Path) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    headers = {
        "authorization": "Bearer of-the-client", "x-prefiller-host-port": "10.0.0.1:1", "x-data-parallel-rank": "1",
        "x-kv-transfer-params": "{}", "cookie": "a=b", "x-request-id": "req-7", "traceparent": trace, "x-session-id": "s1",
        "te": "trailers", "x-bootstrap-room": "3", "tracestate": "a=1,b=2", "x-vllm-priority": "-9", "x-priority": "-9",
        "x-api-key": "of-the-client", "endpoint-load-metrics-format": "json", "x-forwarded-for": "1.2.3.4",
    }  # fmt: skip
    async with pair(tmp_path) as two:
        response = await two.kit.post(TEXT, "/v1/completions", **headers)
        assert response.headers["x-request-id"] == "req-7"
        for engine in two.prefills + two.decodes:
            for leg in engine.legs:
                assert leg.headers == {
                    "host": engine.url.removeprefix("http://"), "authorization": f"Bearer key-of-{engine.id}",
                    "content-type": "application/json", "content-length": str(len(leg.raw)),
                    "x-request-id": "req-7", "traceparent": trace, "tracestate": "a=1,b=2",
                    "x-session-id": "s1",
                }  # fmt: skip


@pytest.mark.parametrize("id", ["x" * 129, "a b", "ä", "<script>"])
async def test_a_bad_request_id_is_replaced(tmp_path: Path, id: str) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        response = await kit.client.post(kit.url + "/v1/completions", json=TEXT, headers=[(b"x-request-id", id.encode())])
        assert response.headers["x-request-id"] != id
        assert engine.legs[0].headers["x-request-id"] == response.headers["x-request-id"]


REFUSALS: list[tuple[bytes, int, str]] = [
    (b"{", 400, "invalid_json"),
    (b"", 400, "invalid_json"),
    (b"[]", 400, "invalid_json"),
    (b'"x"', 400, "invalid_json"),
    (b"\xff\xfe", 400, "invalid_json"),
    (b"[" * 100_000, 400, "json_too_deep"),
    (b'{"model":"m","a":' + b"[" * 200 + b"]" * 200 + b"}", 400, "json_too_deep"),
    (b'{"model":"m","messages":[{"content":' + b"[" * 200 + b"]" * 200 + b"}]}", 400, "json_too_deep"),
    (b'{"prompt":"x"}', 400, "missing_model"),
    (b'{"model":7}', 400, "missing_model"),
    (b'{"model":"gpt-9"}', 404, "model_not_found"),
]


@pytest.mark.parametrize(("raw", "status", "code"), REFUSALS, ids=lambda value: repr(value)[:40])
async def test_bad_bodies_are_refused_clearly(tmp_path: Path, raw: bytes, status: int, code: str) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        response = await kit.post(raw)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert route_of(response)["path"] == "none"
        assert response.headers["x-request-id"]
        assert engine.legs == []


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path, chunked: bool) -> None:
    async with (
        fakes("e1") as (engine,),
        running(tmp_path, whole_model(engine), limits=replace(QUICK, body_bytes=10_000)) as kit,
    ):
        body = json.dumps({**TEXT, "prompt": "x" * 5_000_000}).encode()

        async def parts() -> Any:
            for at in range(0, len(body), 50_000):
                yield body[at : at + 50_000]

        response = await kit.client.post(kit.url + "/v1/completions", content=parts() if chunked else body)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert engine.legs == []
        assert (await kit.post(TEXT)).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1//chat/./completions/", 200), ("/v1/x/../chat/completions", 200), ("/v1/chat%2Fcompletions", 200),
        ("/v1/chat/completions?x=1", 200), ("/tokenize", 404), ("/v1/chat/completions/../../../x", 404), ("/pause", 404),
        ("/v1/load_lora_adapter", 404), ("/invocations", 404), ("/v1/chat/completions%00", 404), ("//evil.example/v1", 404),
    ],
)  # fmt: skip
async def test_paths_are_a_closed_list_under_one_spelling(tmp_path: Path, path: str, status: int) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        body = json.dumps(CHAT).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        answer = await exchange(kit.port, head + body)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert [leg.path for leg in engine.legs] == ["/v1/chat/completions"] * (status == 200)


async def test_a_wrong_method_is_405(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        response = await kit.client.get(kit.url + "/v1/completions")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_keys_are_checked_where_the_table_wants_them(tmp_path: Path) -> None:
    keys = (
        KeyEntry(hashlib.sha256(b"sk-all").hexdigest(), "a"),
        KeyEntry(hashlib.sha256(b"sk-other").hexdigest(), "b", models=("other",)),
    )
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), require_key=True, keys=keys) as kit:
        assert (await kit.post(TEXT)).status_code == 401
        assert (await kit.post(TEXT, "/v1/completions", authorization="Bearer nope")).status_code == 401
        assert (await kit.post(TEXT, "/v1/completions", authorization="Bearer sk-other")).status_code == 403
        assert (await kit.post(TEXT, "/v1/completions", authorization="Bearer sk-all")).status_code == 200
        assert len(engine.legs) == 1


async def test_health_and_models_pages(tmp_path: Path) -> None:
    async with pair(tmp_path, decodes=0) as two:
        get = two.kit.client.get
        assert (await get(two.kit.url + "/livez")).status_code == 200
        ready = await get(two.kit.url + "/readyz")
        assert (ready.status_code, ready.json()["models"]["m"]["missing"]) == (503, ["decode"])
        await two.kit.apply(whole_model(two.d1))
        assert (await get(two.kit.url + "/health")).status_code == 200
        assert (await get(two.kit.url + "/readyz?model=m")).status_code == 200
        assert (await get(two.kit.url + "/readyz?model=x")).status_code == 503
        models = (await get(two.kit.url + "/v1/models")).json()
        assert [row["id"] for row in models["data"]] == ["m"]
        page = (await get(two.kit.url + "/metrics")).text
        assert "twinpool_router_table_generation" in page

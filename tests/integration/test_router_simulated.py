"""The router in front of two simulated engines: what comes out is what one engine alone would say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.router_kit import Kit, route_of, running, text_of
from tests.simulated_engines import MODEL, RunningEngine, spec, split_route
from tests.simulated_engines import running as engine_running

PROMPT = "The KV cache of a prompt is made once, then moved, then read for every token. " * 8


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    folder = tmp_path_factory.mktemp("router-pair")
    with engine_running(folder, spec("p1")) as one, engine_running(folder, spec("d1")) as other:
        yield one, other


@pytest.fixture
async def kit(engines: tuple[RunningEngine, RunningEngine], tmp_path: Path) -> AsyncIterator[Kit]:
    route = split_route({"p1": engines[0], "d1": engines[1]}, kv_bytes_per_token=131072, strict=True)
    async with running(tmp_path, route) as kit:
        yield kit


def request(path: str, prompt: Any) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 24, "seed": 5, "ignore_eos": True}
    return body | ({"prompt": prompt} if path == "completions" else {"messages": [{"role": "user", "content": prompt}]})


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Without what prefix caches held at that moment."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


async def test_cached_tokens_are_those_of_the_prefill_engine(kit: Kit) -> None:
    body = request("completions", "a prompt that nobody has sent before " * 20)
    first, again = (await kit.post(body)).json()["usage"], (await kit.post(body)).json()["usage"]
    assert first["prompt_tokens_details"] is None
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]
    events = await kit.events({**body, "stream_options": {"include_usage": True}})
    assert events[-2]["usage"]["prompt_tokens_details"] == again["prompt_tokens_details"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_text_and_usage_are_those_of_one_engine(
    engines: tuple[RunningEngine, RunningEngine], kit: Kit, path: str
) -> None:
    pulled = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="llama",source="external_kv_transfer"}'
    for prompt in (f"1 {PROMPT}", "x", f"2 {PROMPT * 4}"):  # none begins with what the decode engine has already
        body = request(path, prompt)
        direct = engines[0].http.post(f"/v1/{path}", json=body).json()
        before = engines[1].metric(pulled)
        routed = await kit.post(body, f"/v1/{path}")
        assert route_of(routed)["path"] == "disaggregated"
        assert engines[1].metric(pulled) - before == direct["usage"]["prompt_tokens"]
        assert routed.json()["choices"] == direct["choices"]
        assert counts(routed.json()["usage"]) == counts(direct["usage"])
        events = await kit.events({**body, "stream_options": {"include_usage": True}}, f"/v1/{path}")
        text = direct["choices"][0].get("text") or direct["choices"][0]["message"]["content"]
        assert text_of(events) == text
        assert events[-1] == "[DONE]"
        assert counts(events[-2]["usage"]) == counts(direct["usage"])


async def test_the_openai_client_is_served(kit: Kit) -> None:
    async with openai.AsyncOpenAI(base_url=f"{kit.url}/v1", api_key="none-needed") as client:
        assert [model.id for model in (await client.models.list()).data] == [MODEL]
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=9)
        stream = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=9, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == whole.choices[0].message.content
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=messages)


async def test_a_killed_decode_engine_ends_its_stream_with_an_error(tmp_path: Path) -> None:
    with (
        engine_running(tmp_path, spec("q1")) as prefill,
        engine_running(tmp_path, spec("q2", args={"speed": 1.0})) as decode,
    ):
        async with running(tmp_path, split_route({"q1": prefill, "q2": decode})) as kit:
            body = {**request("completions", PROMPT), "max_tokens": 2000, "stream": True}
            got = b""
            async with kit.client.stream("POST", kit.url + "/v1/completions", json=body) as response:
                async for part in response.aiter_bytes():
                    if not got:
                        decode.kill()
                    got += part
            assert b'"code":"engine_fault"' in got
            assert b"[DONE]" not in got
            again = await kit.post(request("completions", PROMPT))
            assert (again.status_code, route_of(again)["reason"]) in ((200, "decode_lost"), (200, "decode_unavailable"))

"""The `openai` package as users have it, through the router: simulated engines generate; answers that those do not give
(tool calls, other paths) come from fake ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import openai
import pydantic
import pytest

from controlplane.core.protocol import KeyEntry
from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg
from tests.integration.router_kit import Kit, fakes, pair, running, until, whole_model
from tests.simulated_engines import MODEL, RunningEngine, spec, split_route
from tests.simulated_engines import running as engine_running

T = TypeVar("T")
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a KV cache?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city, now",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    folder = tmp_path_factory.mktemp("client-pair")
    with engine_running(folder, spec("p1")) as one, engine_running(folder, spec("d1")) as other:
        yield one, other


@pytest.fixture
async def kit(engines: tuple[RunningEngine, RunningEngine], tmp_path: Path) -> AsyncIterator[Kit]:
    route = split_route({"p1": engines[0], "d1": engines[1]}, kv_bytes_per_token=131072, strict=True)
    async with running(tmp_path, route) as kit:
        yield kit


def asynchronous(kit: Kit, key: str = "none-needed", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{kit.url}/v1", api_key=key, max_retries=0, **options)


async def with_client(kit: Kit, work: Callable[[openai.OpenAI], T]) -> T:
    """What `work` makes with the synchronous client, in a thread of its own."""

    def run() -> T:
        with openai.OpenAI(base_url=f"{kit.url}/v1", api_key="none-needed", max_retries=0) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_the_synchronous_client_chats_and_completes(kit: Kit) -> None:
    def work(client: openai.OpenAI) -> tuple[Any, ...]:
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_completion_tokens=9)
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        text = client.completions.create(model=MODEL, prompt="Once", max_tokens=5, extra_body={"min_tokens": 5})
        several = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=3, n=2)
        tokens = client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=3)
        return raw, list(stream), text, several, tokens, [model.id for model in client.models.list()]

    raw, chunks, text, several, tokens, models = await with_client(kit, work)
    assert raw.headers["x-twinpool-route"].startswith("disaggregated; prefill=p1; decode=d1")
    whole = raw.parse()
    assert whole.usage.completion_tokens == 9
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 9)
    assert text.usage.completion_tokens == 5
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert tokens.usage.prompt_tokens == 3
    assert models == [MODEL]


async def test_the_asynchronous_client_streams_many_at_once(kit: Kit) -> None:
    async with asynchronous(kit) as client:

        async def streamed(number: int) -> str:
            messages = [{"role": "user", "content": f"Count to {number}."}]
            stream = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, stream=True, seed=3)  # type: ignore[call-overload]
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def whole(number: int) -> str:
            messages: list[Any] = [{"role": "user", "content": f"Count to {number}."}]
            answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, seed=3)
            return answer.choices[0].message.content or ""

        numbers = range(12)
        assert await asyncio.gather(*map(streamed, numbers)) == await asyncio.gather(*map(whole, numbers))
    await until(kit.idle, "idle")


async def test_a_client_that_closes_its_stream_leaves_nothing_open(kit: Kit) -> None:
    async with asynchronous(kit) as client:
        stream = await client.completions.create(model=MODEL, prompt="Once", max_tokens=4000, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(kit.idle, "idle")
        answer = await client.completions.create(model=MODEL, prompt="Once", max_tokens=2)
        assert answer.usage and answer.usage.completion_tokens == 2


async def test_fields_of_tools_and_schemas_pass(kit: Kit) -> None:
    """Simulated engines take them and answer with text."""
    async with asynchronous(kit) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, tools=TOOLS, tool_choice="auto", stream=True
        )
        assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
        schema: Any = {"type": "json_schema", "json_schema": {"name": "City", "schema": City.model_json_schema()}}
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, response_format=schema, tool_choice="none", tools=TOOLS,
            logprobs=True, top_logprobs=2, stop=["\0"], user="u", seed=1, extra_body={"cache_salt": "s", "priority": 0},
        )  # fmt: skip
        assert answer.usage and answer.usage.completion_tokens == 6


def tool_call(whole: bool) -> dict[str, Any]:
    call = {
        "index": 0,
        "id": "call-1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Hà Nội"}'},
    }
    return call if not whole else {name: value for name, value in call.items() if name != "index"}


async def calls_a_tool(engine: FakeEngine, leg: Leg) -> None:
    """As vLLM does, in a stream with the arguments in two pieces."""
    asked = (leg.body.get("kv_transfer_params") or {}).get("do_remote_decode")
    if asked or any(message["role"] == "tool" for message in leg.body["messages"]):
        await act.behave(engine, leg)
        return
    base = {"id": "x", "created": 1, "model": "m"}
    if not leg.body.get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": [tool_call(True)]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        document = {**base, "object": "chat.completion", "choices": [choice], "usage": act.usage_of(leg.body, 5)}
        await act.reply(leg, 200, document)
        return
    first, second = tool_call(False), {"index": 0, "function": {"arguments": ' Nội"}'}}
    first["function"]["arguments"] = '{"city":"Hà'
    await act.begin_stream(leg)
    for delta, finish in (({"role": "assistant", "content": ""}, None), ({"tool_calls": [first]}, None),
                          ({"tool_calls": [second]}, None), ({}, "tool_calls")):  # fmt: skip
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await act.send_event(leg, {**base, "object": "chat.completion.chunk", "choices": [choice]})
    await act.send_event(leg, {**base, "object": "chat.completion.chunk", "choices": [], "usage": act.usage_of(leg.body, 5)})
    await act.send_event(leg, b"[DONE]")
    leg.writer.write(b"0\r\n\r\n")
    await leg.writer.drain()


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_tool_is_called_and_its_result_sent_back(tmp_path: Path, choice: Any) -> None:
    async with pair(tmp_path) as two, asynchronous(two.kit) as client:
        for engine in (*two.prefills, *two.decodes):
            engine.always = calls_a_tool
        asked = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 30}
        answer = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
        call = answer.choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Hà Nội"}
        async with client.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.tool_calls
        assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "31 degrees"}
        asked["messages"] = [*MESSAGES, answer.choices[0].message, result]
        again = await client.chat.completions.create(**{**asked, "tool_choice": "none"})  # type: ignore[call-overload]
        assert again.choices[0].finish_reason == "length"
        assert [leg.body["tools"] for engine in two.decodes for leg in engine.generations()] == [TOOLS] * 3


async def test_its_errors_are_the_clients_own_classes(tmp_path: Path) -> None:
    keys = tuple(
        KeyEntry(hashlib.sha256(name.encode()).hexdigest(), name, **fields)
        for name, fields in (("good", {}), ("poor", {"requests_per_minute": 1}), ("other", {"models": ("x",)}))  # type: ignore[arg-type]
    )
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine), require_key=True, keys=keys) as kit:

        async def ask(key: str, model: str = "m", **more: Any) -> Any:
            async with asynchronous(kit, key) as client:
                answer = await client.completions.create(model=model, prompt="x", max_tokens=2, **more)
                return [chunk async for chunk in answer] if more.get("stream") else answer

        with pytest.raises(openai.AuthenticationError):
            await ask("bad")
        with pytest.raises(openai.PermissionDeniedError):
            await ask("other")
        with pytest.raises(openai.NotFoundError) as missing:
            await ask("good", "nope")
        assert missing.value.code == "model_not_found"
        assert (await ask("poor")).choices
        with pytest.raises(openai.RateLimitError) as limited:
            await ask("poor")
        assert limited.value.response.headers["retry-after"]
        with pytest.raises(openai.BadRequestError, match="min_tokens"):
            await ask("good", extra_body={"min_tokens": 3})
        engine.always = act.answer(500)
        with pytest.raises(openai.InternalServerError):
            await ask("good")
        engine.always = act.break_stream(2)
        with pytest.raises(openai.APIError, match="engine failed"):
            await ask("good", stream=True, seed=1)  # with a seed no other engine could carry it on


async def test_other_paths_are_parsed(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    vectors = {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": usage,
    }
    counted = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    text = {"type": "output_text", "text": "hi", "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    response = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [message]}
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit, asynchronous(kit) as client:
        engine.acts = [act.answer(200, vectors), act.answer(200, {**response, "usage": counted})]
        found = await client.embeddings.create(model="m", input="x", encoding_format="float")
        assert found.data[0].embedding == [0.5]
        answer = await client.responses.create(model="m", input="x")
        assert answer.output_text == "hi"
        assert answer.usage and answer.usage.total_tokens == 5

"""An engine for router tests: a real HTTP server that speaks as much of vLLM as the router needs, writes down every leg,
and misbehaves on demand. Its text is a function of the prompt alone, so that any path must give the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

SIDE_PATHS = ("/metrics", "/health")
Act = Callable[["FakeEngine", "Leg"], Awaitable[None]]


@dataclass
class Leg:
    path: str
    headers: dict[str, str]
    raw: bytes
    writer: asyncio.StreamWriter
    body: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    """Answered to the end; False once the connection is gone means that the router cancelled it."""
    cancelled: bool = False


def words(prompt: Any, count: int) -> list[str]:
    seed = json.dumps(prompt, sort_keys=True).encode()
    return [" " + hashlib.sha256(seed + index.to_bytes(4)).hexdigest()[:4] for index in range(count)]


class FakeEngine:
    """`acts` are used up one a leg; without one it behaves."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.port = 0
        self.legs: list[Leg] = []
        self.acts: list[Act] = []
        self.always: Act | None = None
        self.expired: float | None = 0.0
        """vllm:nixl_num_kv_expired_reqs_total; None: /metrics fails."""
        self.expires_next = False
        """A lease ends right after the next reading of that counter."""
        self.kv_blocks = 0
        """Of 16 tokens, as /metrics tells; 0: it does not."""
        self.metrics_act: Act = metrics
        self.hung = False
        """Nothing is answered, not even /health."""
        self.connections = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.step_s = 0.0
        """Between two events of a stream."""
        self.room = 100_000
        """Tokens of the longest prompt it takes."""
        self.cached: int | None = None
        """Prompt tokens that its prefix cache has; None: usage does not tell. KV that it pulled counts too, as in vLLM."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def generations(self) -> list[Leg]:
        return [leg for leg in self.legs if leg.path not in SIDE_PATHS and leg.body.get("prompt") != "ping"]

    async def start(self) -> FakeEngine:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """As if killed: connections are reset, the port refuses."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_connections(self) -> None:
        for writer in list(self.open):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self.open.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        leg = Leg(head[0].split(" ")[1], headers, raw, writer)
        if raw:
            leg.body = json.loads(raw)
        self.legs.append(leg)
        act = self.metrics_act if leg.path == "/metrics" else None
        if leg.path not in SIDE_PATHS:
            act = self.acts.pop(0) if self.acts else self.always
        if self.hung:
            act = hang
        watch = asyncio.ensure_future(self._watch(reader, leg))
        work = asyncio.ensure_future((act or behave)(self, leg))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                leg.cancelled = True
                return False
            work.result()
            leg.done = True
        except OSError:
            leg.cancelled = True
            raise
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)
        return not writer.transport.is_closing()

    @staticmethod
    async def _watch(reader: asyncio.StreamReader, leg: Leg) -> None:
        """Ends when the router closes the connection while a leg is open (it never pipelines)."""
        while not (reader.at_eof() or leg.writer.transport.is_closing()):  # noqa: ASYNC110  # two things to look at
            await asyncio.sleep(0.01)


# --- good behaviour ---


async def behave(engine: FakeEngine, leg: Leg) -> None:
    if leg.path == "/metrics":
        await metrics(engine, leg)
    elif leg.path in ("/v1/completions", "/v1/chat/completions"):
        if problem := refused(engine, leg.body):
            await reply(leg, 400, {"error": {"message": problem, "type": "BadRequestError", "param": None, "code": 400}})
        else:
            await (stream if leg.body.get("stream") else whole)(engine, leg)
    else:
        await reply(leg, 200, {"path": leg.path, "engine": engine.id})


def refused(engine: FakeEngine, body: dict[str, Any]) -> str:
    """What vLLM says about bodies that it does not take; a router that sends one has made a mistake."""
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    if body.get("max_tokens", 1) == 0:
        return "max_tokens must be at least 1"
    if body.get("min_tokens", 0) > (body.get("max_completion_tokens") or body.get("max_tokens") or 1 << 30):
        return "min_tokens must be less than or equal to max_tokens"
    return f"This model's maximum context length is {engine.room} tokens." if prompt_tokens(body) >= engine.room else ""


def prompt_of(body: dict[str, Any]) -> Any:
    return body.get("messages") or body.get("prompt")


def prompts_of(body: dict[str, Any]) -> list[Any]:
    """One or, of completions, a list."""
    prompt = prompt_of(body)
    several = "messages" not in body and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return prompt if several else [prompt]


def prompt_tokens(body: dict[str, Any]) -> int:
    return sum(map(_tokens_in, prompts_of(body)))


def _tokens_in(prompt: Any) -> int:
    return (
        len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else len(json.dumps(prompt)) // 4
    )


def choices_of(body: dict[str, Any]) -> int:
    """Of each prompt."""
    return int(body.get("n") or 1)


def answers_of(body: dict[str, Any]) -> list[list[str]]:
    """The words of each choice: `n` for every prompt. The first of a prompt is what it always is."""
    count = count_of(body)
    return [words([prompt, k] if k else prompt, count) for prompt in prompts_of(body) for k in range(choices_of(body))]


def usage_of(body: dict[str, Any], count: int, cached: int | None = None) -> dict[str, Any]:
    prompt = prompt_tokens(body)
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    if cached is not None:
        pulled = (body.get("kv_transfer_params") or {}).get("do_remote_prefill")
        usage["prompt_tokens_details"] = {"cached_tokens": prompt if pulled else cached}
    return usage


def count_of(body: dict[str, Any]) -> int:
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)


async def reply(leg: Leg, status: int, document: Any, extra: str = "", head_only: bool = False) -> None:
    body = json.dumps(document, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    leg.writer.write(head.encode() + (b"" if head_only else body))
    await leg.writer.drain()


async def metrics(engine: FakeEngine, leg: Leg) -> None:
    if engine.expired is None:
        await reply(leg, 500, {})
        return
    page = f'# HELP x\nvllm:nixl_num_kv_expired_reqs_total{{engine="0",model_name="m"}} {engine.expired}\n'.encode()
    if engine.expires_next:
        engine.expires_next, engine.expired = False, engine.expired + 1.0
    if engine.kv_blocks:
        page += b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="%d"} 1.0\n' % engine.kv_blocks
    leg.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
    await leg.writer.drain()


async def expire_once_read(engine: FakeEngine) -> None:
    """A lease ends on the engine once its counter has been read, before it is read again however slow this machine is."""
    if any(leg.path == "/metrics" for leg in engine.legs):
        engine.expired = (engine.expired or 0.0) + 1.0
        return
    engine.expires_next = True
    async with asyncio.timeout(60):
        while engine.expires_next:  # noqa: ASYNC110  # a fake's plain state
            await asyncio.sleep(0.01)


async def whole(engine: FakeEngine, leg: Leg) -> None:
    body, answers = leg.body, answers_of(leg.body)
    choices = [_choice(body, index, tokens) for index, tokens in enumerate(answers)]
    usage = usage_of(body, sum(map(len, answers)), engine.cached)
    document: dict[str, Any] = {"id": "x", "choices": choices, "usage": usage, "kv_transfer_params": None}
    if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
        document["kv_transfer_params"] = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": engine.id, "remote_block_ids": [1, 2],
            "remote_request_id": secrets.token_hex(4), "remote_host": "127.0.0.1", "remote_port": 1,
        }  # fmt: skip
    await reply(leg, 200, document)


def _choice(body: dict[str, Any], index: int, tokens: list[str]) -> dict[str, Any]:
    text = "".join(tokens)
    choice: dict[str, Any] = {"index": index, "finish_reason": "length"}
    if "messages" in body:
        return choice | {"message": {"role": "assistant", "content": text}}
    prompt = prompts_of(body)[index // choices_of(body)]
    if body.get("logprobs") is not None:
        choice["logprobs"] = {"tokens": ([str(prompt)] if body.get("echo") else []) + tokens}
    if body.get("prompt_logprobs") is not None:
        # Of KV that came from elsewhere nothing is known.
        choice["prompt_logprobs"] = None if body.get("kv_transfer_params") else [None, *str(prompt).split()[1:]]
    return choice | {"text": (str(prompt) if body.get("echo") else "") + text}


async def begin_stream(leg: Leg) -> None:
    leg.writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await leg.writer.drain()


async def send_event(leg: Leg, document: Any) -> None:
    payload = b"data: %b\n\n" % (
        document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
    )
    leg.writer.write(b"%x\r\n%b\r\n" % (len(payload), payload))
    await leg.writer.drain()


def event(body: dict[str, Any], text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if "messages" in body else {"text": text}
    return {"id": "x", "choices": [choice], "usage": None}


async def stream(engine: FakeEngine, leg: Leg) -> None:
    body, answers = leg.body, answers_of(leg.body)
    await begin_stream(leg)
    for number in range(count_of(body)):
        finish = "length" if number == count_of(body) - 1 else None
        for index, tokens in enumerate(answers):
            await send_event(leg, event(body, tokens[number], finish, index))
        if engine.step_s:
            await asyncio.sleep(engine.step_s)
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = usage_of(body, sum(map(len, answers)), engine.cached)
        await send_event(leg, {"id": "x", "choices": [], "usage": usage})
    await send_event(leg, b"[DONE]")
    leg.writer.write(b"0\r\n\r\n")
    await leg.writer.drain()


# --- misbehaviour ---


def answer(status: int, document: Any = None, extra: str = "") -> Act:
    async def act(engine: FakeEngine, leg: Leg) -> None:
        await reply(leg, status, document or {"error": {"message": f"tcp://10.9.8.7:5600 status {status}"}}, extra)

    return act


async def close(engine: FakeEngine, leg: Leg) -> None:
    leg.writer.transport.abort()


async def hang(engine: FakeEngine, leg: Leg) -> None:
    await asyncio.sleep(3600)


async def garbage(engine: FakeEngine, leg: Leg) -> None:
    leg.writer.write(b"\x00\x01 this is not HTTP\r\n\r\n")
    await leg.writer.drain()


def later(seconds: float, then: Act = behave) -> Act:
    async def act(engine: FakeEngine, leg: Leg) -> None:
        await asyncio.sleep(seconds)
        await then(engine, leg)

    return act


def once(happened: Callable[[], Awaitable[Any]]) -> Act:
    """Behaves after `happened` has returned."""

    async def act(engine: FakeEngine, leg: Leg) -> None:
        await happened()
        await behave(engine, leg)

    return act


def break_stream(events: int, last: Any = None, clean: bool = False) -> Act:
    """Streams some events, then perhaps one more, then dies; or with `clean` ends the HTTP message as if all were well."""

    async def act(engine: FakeEngine, leg: Leg) -> None:
        await begin_stream(leg)
        for token in words(prompt_of(leg.body), events):
            await send_event(leg, event(leg.body, token))
        if last is not None:
            await send_event(leg, last)
        await asyncio.sleep(0.05)
        if clean:
            await send_event(leg, b"[DONE]")
            leg.writer.write(b"0\r\n\r\n")
            await leg.writer.drain()
        else:
            leg.writer.transport.abort()

    return act

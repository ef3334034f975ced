"""One question to a pair of engines: a prefill leg on the one, a decode leg on the other, and what their counters say.

The same legs as the router's. HTTP only, no rows.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from controlplane.common.engineclient import Answer, EngineClient, EngineSilent
from controlplane.core.handoff_probe import ANSWER_TOKENS, BEHIND, MOST, Seen, Verdict, judge

DEADLINE_S = 10.0
"""For all of it, the time not counted in which a leg waits behind requests of others."""
QUEUED_S = 900.0
"""Behind others a probe waits at most so long."""
LOOK_S = 0.5
"""So often an engine is asked how far it is with them."""
COUNTED_WITHIN_S = 1.0
"""An engine's counters may follow its answer a step later."""
LOOK_AGAIN_S = 0.01

PULLED_TOKENS, PULLED_BYTES = "pulled tokens", "pulled bytes"
WAITING, FETCHING, RUNNING, FINISHED = "waiting", "fetching", "running", "finished"
"""Requests; of those that wait, some (fetching) have left the queue already: their KV is on its way."""
WORK = (FINISHED, "prompt tokens", "answer tokens", "steps")
"""One of these grows while an engine works."""
_SAMPLES = {
    PULLED_TOKENS: rb'vllm:prompt_tokens_by_source_total\{[^\n]*source="external_kv_transfer"[^\n]*\}',
    PULLED_BYTES: rb"vllm:nixl_bytes_transferred_sum(?:\{[^\n]*\})?",
    WAITING: rb"vllm:num_requests_waiting(?:\{[^\n]*\})?",
    FETCHING: rb'vllm:num_requests_waiting_by_reason\{[^\n]*reason="deferred"[^\n]*\}',
    RUNNING: rb"vllm:num_requests_running(?:\{[^\n]*\})?",
    FINISHED: rb"vllm:request_success_total(?:\{[^\n]*\})?",
    "prompt tokens": rb"vllm:prompt_tokens_total(?:\{[^\n]*\})?",
    "answer tokens": rb"vllm:generation_tokens_total(?:\{[^\n]*\})?",
    "steps": rb"vllm:iteration_tokens_total_count(?:\{[^\n]*\})?",
}
_FIGURES = {name: re.compile(rb"^%b[ \t]+([^\s]+)" % sample, re.MULTILINE) for name, sample in _SAMPLES.items()}
BEFORE_OTHERS = -(1 << 31)
"""The priority of a probe: the lowest number goes first."""
KEEP_KV = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True)
class Endpoint:
    """One start of an engine. `url`: http://host:port."""

    id: str
    url: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class Asked:
    """`salt` keeps the prompt apart from whatever is in the engines' prefix caches."""

    model: str
    prompt: str = field(repr=False)
    salt: str = field(repr=False)
    by_parameters: bool
    """The connector pulls what the prefill's answer names, and counts bytes; else KV goes through a shared store."""
    before_others: bool = False
    """The engines schedule by priority: it need not wait behind others."""


@dataclass(frozen=True)
class Outcome:
    """`handoff_ms`: from the prefill's end to the decode engine's first token; None: it gave none."""

    verdict: Verdict
    handoff_ms: float | None = None


@dataclass
class Turn:
    """How long a question may take. A leg that waits behind requests of others, at an engine that works, is no failed
    handoff: meanwhile `deadline` (of the running loop's clock) is put off, up to `last`; `tell` gets in words what for."""

    deadline: float
    last: float
    within_s: float
    """From when the leg's turn has come."""
    tell: Callable[[str], Awaitable[None]]

    async def waits(self, words: str) -> None:
        self.deadline = max(self.deadline, min(self.last, asyncio.get_running_loop().time() + self.within_s))
        await self.tell(words)


class _Failed(Exception):
    """The question got no usable answer; says whose and why."""


async def ask_pair(prefill: Endpoint, decode: Endpoint, asked: Asked, turn: Turn) -> Outcome:
    """Always an outcome."""
    during = _Stage()
    try:
        async with asyncio.timeout_at(turn.deadline) as limit, _clients(prefill, prefill, decode, decode) as made:
            at_prefill, at_decode = (
                _Engine(each, client, looking, limit, turn)
                for each, client, looking in zip((prefill, decode), made[::2], made[1::2], strict=True)
            )
            return await _ask(at_prefill, at_decode, asked, during)
    except TimeoutError:
        return _failed(f"{during.what} was not answered in time")
    except EngineSilent as error:
        return _failed(f"{during.what}: {error}")
    except _Failed as error:
        return _failed(str(error))


def _failed(reason: str) -> Outcome:
    return Outcome(Verdict(False, reason))


@dataclass
class _Stage:
    """What is being waited for, in words."""

    what: str = ""


@asynccontextmanager
async def _clients(*endpoints: Endpoint) -> AsyncIterator[list[EngineClient]]:
    clients = []
    for endpoint in endpoints:
        parts = urlsplit(endpoint.url)
        clients.append(EngineClient(parts.hostname or "", parts.port or 80, endpoint.key))
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


@dataclass(frozen=True)
class _Engine:
    endpoint: Endpoint
    client: EngineClient
    looking: EngineClient
    """For what is asked while the other is waited for."""
    limit: asyncio.Timeout
    turn: Turn

    async def figures(self) -> dict[str, float]:
        answer = await self.looking.get("/metrics", DEADLINE_S)
        if answer.status != 200:
            raise _Failed(f"{self.endpoint.id} answered {answer.status} when asked for its counters")
        try:
            found = {name: sum(map(float, figure.findall(answer.body))) for name, figure in _FIGURES.items()}
        except ValueError:
            found = {"": math.nan}
        if not all(map(math.isfinite, found.values())):
            raise _Failed(f"{self.endpoint.id} shows counters that are no numbers")
        return found

    async def complete(self, what: str, asked: Asked, **fields: Any) -> Answer:
        body = {"model": asked.model, "prompt": asked.prompt, "cache_salt": asked.salt, "temperature": 0, **fields}
        if asked.before_others:
            body["priority"] = BEFORE_OTHERS
        before = await self.figures()
        leg = asyncio.ensure_future(self.client.post("/v1/completions", body, QUEUED_S))
        try:
            await self._turn_has_come(leg, before)
            answer = await leg
        finally:
            leg.cancel()
        if answer.status != 200:
            raise _Failed(f"{self.endpoint.id} answered {answer.status} to {what}{_why(answer)}")
        return answer

    async def _turn_has_come(self, leg: asyncio.Future[Answer], before: dict[str, float]) -> None:
        """Returns once the leg has ended, or has left the engine's queue after all that waited before it. Until then time in
        which the engine works does not count."""
        last = _left_the_queue(before) + before[WAITING] - before[FETCHING]
        seen = before
        while (ahead := round(last - _left_the_queue(seen))) >= 0:
            if (await asyncio.wait({leg}, timeout=LOOK_S))[0]:
                return
            try:
                now = await self.figures()
            except EngineSilent:
                continue  # it may be too busy to say so; that alone is no sign of work
            if any(now[name] != seen[name] for name in WORK):
                await self.turn.waits(f"{BEHIND} {ahead} requests on {self.endpoint.id}")
                if not self.limit.expired():
                    self.limit.reschedule(self.turn.deadline)
            seen = now


async def _ask(prefill: _Engine, decode: _Engine, asked: Asked, during: _Stage) -> Outcome:
    during.what = f"the counters of {decode.endpoint.id}"
    before = await decode.figures()
    during.what = f"the prefill leg on {prefill.endpoint.id}"
    handoff = {"kv_transfer_params": KEEP_KV} if asked.by_parameters else {}
    first = _document(prefill, await prefill.complete("the prefill leg", asked, max_tokens=1, **handoff))
    prefilled = time.monotonic()
    if asked.by_parameters:
        handoff = {"kv_transfer_params": _offer(prefill, first)}
    during.what = f"the decode leg on {decode.endpoint.id}"
    fields = {"max_tokens": ANSWER_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    decoding = decode.complete("the decode leg", asked, **fields, **handoff)
    # On the engine that has computed the prompt, so that the other's counters show the handoff alone.
    whole = prefill.complete("the same prompt whole", asked, max_tokens=ANSWER_TOKENS)
    streamed, alone = await asyncio.gather(decoding, whole)
    text, usage = _events(decode, streamed)
    during.what = f"the counters of {decode.endpoint.id}"
    prompt_tokens = _tokens(usage)
    grown = await _grown(decode, before, prompt_tokens)
    seen = Seen(
        prompt_tokens=prompt_tokens,
        pulled_tokens=grown[PULLED_TOKENS],
        pulled_bytes=grown[PULLED_BYTES],
        same_text=text == _text(_document(prefill, alone)),
    )
    return Outcome(judge(seen, asked.by_parameters), (streamed.first_at - prefilled) * 1000)


def _left_the_queue(figures: dict[str, float]) -> float:
    """Requests that ever did."""
    return figures[FINISHED] + figures[RUNNING] + figures[FETCHING]


async def _grown(decode: _Engine, before: dict[str, float], prompt_tokens: int) -> dict[str, float]:
    """By how much its counters have grown, once they show the prompt or will not any more."""
    until, wait_s = time.monotonic() + COUNTED_WITHIN_S, LOOK_AGAIN_S
    while True:
        after = await decode.figures()
        grown = {name: value - before[name] for name, value in after.items()}
        if grown[PULLED_TOKENS] >= MOST * prompt_tokens or time.monotonic() >= until:
            return grown
        await asyncio.sleep(wait_s)
        wait_s *= 2


# --- reading answers ------------------------------------------------------------------------------------------------------


def _document(engine: _Engine, answer: Answer) -> dict[str, Any]:
    try:
        document = answer.json()
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _Failed(f"{engine.endpoint.id} answered no JSON object")
    return document


def _offer(prefill: _Engine, answer: dict[str, Any]) -> dict[str, Any]:
    """What the decode leg is to be sent. Without it a decode engine computes the prompt, or dies (docs/vllm-facts.md)."""
    offer = answer.get("kv_transfer_params")
    if not isinstance(offer, dict) or offer.get("do_remote_prefill") is not True or not offer.get("remote_engine_id"):
        raise _Failed(f"{prefill.endpoint.id} kept no KV for another engine: its connector is not set up to hand over")
    return offer


def _text(document: dict[str, Any]) -> str | None:
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = choice.get("text") if isinstance(choice, dict) else None
    return text if isinstance(text, str) else None


def _events(decode: _Engine, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Text and usage of a streamed answer."""
    text = ""
    usage: dict[str, Any] = {}
    for line in answer.body.splitlines():
        data = line.removeprefix(b"data:").strip()
        if data == line or data == b"[DONE]":
            continue
        event = _document(decode, Answer(200, data))
        if "error" in event:
            raise _Failed(f"{decode.endpoint.id} broke off the decode leg{_why(Answer(200, data))}")
        text += _text(event) or ""
        usage = event["usage"] if isinstance(event.get("usage"), dict) else usage
    return text, usage


def _tokens(usage: dict[str, Any]) -> int:
    tokens = usage.get("prompt_tokens")
    if type(tokens) is not int or tokens <= 0:
        raise _Failed("the decode engine did not count the prompt")
    return tokens


def _why(answer: Answer) -> str:
    """An engine's own words about an error, shortened."""
    try:
        error = json.loads(answer.body)["error"]
        return f": {error['message']!s:.200}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""

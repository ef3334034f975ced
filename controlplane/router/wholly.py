"""The leg whose answer is the client's, on one engine; and a request served by that leg alone, with one retry."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from controlplane.router import bodies, errors, legs, usage
from controlplane.router.engines import Engine
from controlplane.router.errors import ApiError
from controlplane.router.handoff import Handoff
from controlplane.router.legs import Answer
from controlplane.router.relay import Late, Relay
from controlplane.router.upstream import Fault

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange


@dataclass(frozen=True, slots=True)
class KvLost:
    """The decode engine answered so late that its KV may have been somebody else's: the answer was dropped."""


async def whole(x: Exchange, tried: set[str], last: Fault | None = None) -> None:
    """One engine does everything; one retry on another."""
    body = bodies.answer_bytes(x.body, ask_usage=x.generates)
    retries = 1
    while True:
        engine = x.choose("whole", tried)
        if engine is None:
            raise error_of(last, x.model_name)
        if not await x.trusts(engine):
            tried.add(engine.route.id)
            continue
        outcome = await answer_leg(x, engine, body, None, x.need.uncached(engine.route.id))
        if not isinstance(outcome, Fault):
            return
        last = outcome
        x.note_fault(engine, outcome)
        tried.add(engine.route.id)
        if retries == 0:
            raise error_of(last, x.model_name)
        retries -= 1


def error_of(fault: Fault | None, model: str) -> ApiError:
    """What the client is told when the last engine failed with `fault`; None: there was none to ask."""
    if fault is None or fault.status == 503:
        return errors.no_engine(model)
    return errors.engine_timeout() if fault.kind in ("timeout", "hung") else errors.engine_fault()


async def answer_leg(
    x: Exchange, engine: Engine, body: bytes, handoff: Handoff | None, prefill_tokens: int
) -> Fault | KvLost | None:
    """The leg whose answer is the client's. None: the client has it (or its error, or as much of it as there was)."""
    limits = x.router.limits
    need, started = x.need, time.monotonic()
    reserved = engine.load.reserve(prefill_tokens, need.output_tokens, need.prompt_tokens + need.output_tokens)
    x.router.sends(engine, x.prefix.keys)
    x.decode_id = engine.route.id

    def first_byte() -> None:
        reserved.prefill_done()
        if handoff is not None:
            handoff.end("pulled")
        if x.body.stream:
            _measure(x, engine, handoff, reserved.ahead_tokens + prefill_tokens, time.monotonic() - started)

    def event() -> None:
        engine.produced += 1

    x.relay = relay = Relay(
        x.client,
        x.head_of,
        limits,
        strip_usage=x.generates and not x.body.asked_usage,
        prompt_details=handoff.prompt_details if handoff is not None else None,
        expects_done=x.generates,
        http10=x.request.http10,
        late_after=handoff.late_after if handoff is not None else float("inf"),
        on_first=first_byte,
        on_event=event,
    )
    if handoff is not None:
        handoff.decode_starts(engine.route.id)
    try:
        request = engine.request(x.endpoint.encode(), body, x.forwarded)
        outcome = await legs.run(engine.pool, request, relay, limits.first_byte_s, limits)
        if handoff is not None and _is_late(outcome, handoff):
            kept = await handoff.kv_kept()
            x.router.counters.kv_checks["believed" if kept else "dropped"] += 1
            if not kept:
                handoff.end("dropped")
                return KvLost()
            if isinstance(outcome, Late):
                outcome = relay.release() or await relay.wait()
        if isinstance(outcome, Fault):
            return outcome
        assert not isinstance(outcome, Late)
        if isinstance(outcome, Answer):
            if outcome.status == 200:
                first_byte()
                if handoff is not None:
                    outcome = replace(outcome, body=usage.with_details(outcome.body, handoff.prompt_details))
            x.send(outcome)
        x.note_answer(engine, relay, outcome)
        return None
    finally:
        if handoff is not None:
            handoff.asked |= relay.sent
        relay.abort()
        reserved.release()


def _measure(x: Exchange, engine: Engine, handoff: Handoff | None, tokens: int, seconds: float) -> None:
    """A stream began after `seconds`: how fast the engine computed `tokens`, or pulled what it did not hold."""
    if handoff is None:
        engine.rates.saw_prefill(tokens, seconds)
    elif handoff.kv_params is not None:
        pulled = x.model.route.kv_bytes(x.need.uncached(engine.route.id))
        engine.links.saw(handoff.engine.route.id, pulled, seconds)


def _is_late(outcome: object, handoff: Handoff) -> bool:
    whole_and_late = isinstance(outcome, Answer) and outcome.status == 200 and time.monotonic() > handoff.late_after
    return isinstance(outcome, Late) or whole_and_late

"""The leg whose answer is the client's, on one engine; and a request served by that leg alone, with one retry."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from controlplane.core.eras import Era
from controlplane.router import bodies, errors, legs, usage
from controlplane.router.engines import Engine
from controlplane.router.errors import ApiError
from controlplane.router.handoff import Handoff
from controlplane.router.legs import Answer
from controlplane.router.relay import Broken, Late, Relay
from controlplane.router.resume import StreamBroken
from controlplane.router.upstream import Fault

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange


@dataclass(frozen=True, slots=True)
class KvLost:
    """The answer was dropped: it came so late that its KV may have been somebody else's, or such KV may have been in the
    engine's prefix cache."""


KV_RETRIES = 2
"""Of a request that one engine serves alone, for answers out of a cache that turned out to be spoilt meanwhile."""


async def whole(x: Exchange, tried: set[str], last: Fault | None = None) -> None:
    """One engine does everything; one retry on another."""
    retries, kv_retries = 1, KV_RETRIES
    while True:
        engine = x.choose("whole", tried)
        if engine is None:
            raise error_of(last, x.model_name)
        if not await x.trusts(engine):
            tried.add(engine.route.id)
            continue
        outcome = await answer_leg(x, engine, None, x.need.uncached(engine.route.id))
        if isinstance(outcome, KvLost):
            if kv_retries == 0:
                raise errors.engine_timeout()
            kv_retries -= 1
            x.retries += 1
            continue
        if outcome is None:
            return
        last = outcome
        await x.note_fault(engine, outcome)
        tried.add(engine.route.id)
        if retries == 0:
            raise error_of(last, x.model_name)
        retries -= 1


def error_of(fault: Fault | None, model: str) -> ApiError:
    """What the client is told when the last engine failed with `fault`; None: there was none to ask."""
    if fault is None or fault.status == 503:
        return errors.no_engine(model)
    return errors.engine_timeout() if fault.kind in ("timeout", "hung") else errors.engine_fault()


async def answer_leg(x: Exchange, engine: Engine, handoff: Handoff | None, prefill_tokens: int) -> Fault | KvLost | None:
    """The leg whose answer is the client's. None: the client has it (or its error, or as much of it as there was)."""
    limits = x.router.limits
    need, started, era = x.need, time.monotonic(), engine.era
    if x.sent_at is None:
        x.sent_at = started
    reserved = engine.load.reserve(prefill_tokens, need.output_tokens, need.prompt_tokens + need.output_tokens)
    x.router.sends(engine, x.prefix.keys)
    x.decode_id = engine.route.id

    def first_byte() -> None:
        engine.proved_alive(started)
        reserved.prefill_done()
        if handoff is not None:
            handoff.end("pulled")
        if x.body.stream:
            _measure(x, engine, handoff, reserved.ahead_tokens + prefill_tokens, time.monotonic() - started)

    relay = Relay(
        x.client,
        x.head_of,
        limits,
        engine,
        x.router.gathering,
        strip_usage=x.generates and not x.body.asked_usage,
        prompt_details=handoff.prompt_details if handoff is not None else None,
        expects_done=x.generates,
        http10=x.request.http10,
        keeps=x.may_resume,
        late_after=handoff.late_after if handoff is not None else math.inf,
        era=era,
        on_first=first_byte,
    )
    if x.seam is not None:
        assert x.relay is not None
        relay.carry_on(x.relay, replace(x.seam))  # a copy: what comes of a leg that fails is not sent
    x.relay = relay
    if handoff is not None:
        handoff.decode_starts(engine.route.id)
    checked = False
    try:
        body = bodies.answer_bytes(x.body, handoff.kv_params if handoff is not None else None, x.generates, era.salt)
        request = engine.request(x.endpoint.encode(), body, x.forwarded)
        outcome = await legs.run(engine.pool, request, relay, limits.first_byte_s, limits)
        if _is_late(outcome, handoff, era):
            checked = True
            if not await _believed(x, engine, era, handoff):
                if handoff is not None:
                    handoff.end("dropped")
                return KvLost()
            if isinstance(outcome, Late):
                outcome = relay.release() or await relay.wait()
        if isinstance(outcome, Fault):
            return outcome
        assert not isinstance(outcome, Late)
        if isinstance(outcome, Broken):
            x.note_broken(engine, relay)
            raise StreamBroken(engine, relay)
        if isinstance(outcome, Answer):
            if outcome.status == 200:
                first_byte()
                if handoff is not None:
                    outcome.body, outcome.document = usage.with_details(outcome.body, handoff.prompt_details), None
            x.send(outcome)
        x.note_answer(engine, relay, outcome)
        return None
    finally:
        if handoff is not None:
            handoff.asked |= relay.sent
            if relay.sent and not (checked or handoff.in_time(relay.first_at)):
                x.router.watches.add(engine, era, handoff)
        relay.abort()
        reserved.release()


def _measure(x: Exchange, engine: Engine, handoff: Handoff | None, tokens: int, seconds: float) -> None:
    """A stream began after `seconds`: how fast the engine computed `tokens`, or pulled what it did not hold."""
    if handoff is None:
        engine.rates.saw_prefill(tokens, seconds)
    elif handoff.kv_params is not None:
        pulled = x.model.route.kv_bytes(x.need.uncached(engine.route.id))
        engine.links.saw(handoff.engine.route.id, pulled, seconds)


def _is_late(outcome: object, handoff: Handoff | None, era: Era) -> bool:
    if isinstance(outcome, Answer) and outcome.status == 200:
        return not (era.sound and (handoff is None or handoff.in_time(time.monotonic())))
    return isinstance(outcome, Late)


async def _believed(x: Exchange, engine: Engine, era: Era, handoff: Handoff | None) -> bool:
    """Whether an answer that is held may be sent on. Others of its era are held until this is known, or sent elsewhere."""
    if handoff is not None and not handoff.in_time(time.monotonic()):
        # The client may leave meanwhile; what is found out matters to others too.
        await asyncio.shield(x.router.spawn(_check(x, engine, era, handoff)))
    return await engine.believes(era)


async def _check(x: Exchange, engine: Engine, era: Era, handoff: Handoff) -> None:
    engine.doubt(era)
    kept = False
    try:
        kept = await handoff.kv_kept()
        x.router.counters.kv_checks["believed" if kept else "dropped"] += 1
    finally:
        engine.settle(era, kept)

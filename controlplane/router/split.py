"""Prefill on one engine, then decode on another, with what happens when a leg fails before the first byte.

Which engine and which way out are decisions of core.routing; this file carries them out and keeps the budgets: one retry
on another engine per kind of leg, one prefill for KV that was lost.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import orjson

from controlplane.core import routing
from controlplane.core.eras import Era
from controlplane.core.routing import Path, Reason
from controlplane.core.scoring import Source
from controlplane.router import bodies, errors, expiry, legs, release, usage
from controlplane.router.engines import Engine
from controlplane.router.handoff import Handoff
from controlplane.router.legs import Answer
from controlplane.router.upstream import Fault
from controlplane.router.wholly import KvLost, answer_leg, error_of, whole

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange

NEVER_SCHEDULED = (401, 403, 503)
"""A decode engine that answers so has not looked at the KV: a wrong key, or vLLM's --max-num-queued-reqs. It waits on the
prefill engine as before."""


class Split:
    """Prefill on one engine, decode on another that is chosen when the prefill is done."""

    def __init__(self, x: Exchange) -> None:
        self.x = x
        self.route = x.model.route
        self.prefill_tried: set[str] = set()
        self.decode_tried: set[str] = set()
        self.prefill_retries = 1
        self.decode_retries = 1
        self.kv_retries = 1
        self.last: Fault | None = None
        self.ahead_tokens = 0
        """Prompt tokens that were reserved on the prefill engine before ours."""

    async def run(self) -> None:
        again = True
        while again:
            handoff = await self._prefill()
            if handoff is None:
                return
            try:
                again = await self._decode(handoff)
            finally:
                self._over(handoff)

    def _over(self, handoff: Handoff) -> None:
        x = self.x
        if not x.client.gone:
            handoff.end("stranded")
        elif handoff.asked or not release.start(x, handoff):
            handoff.end("client_gone")  # a decode engine that has the request tells the prefill engine itself

    # --- prefill ---

    async def _prefill(self) -> Handoff | None:
        """KV ready to be pulled; None if the request was answered without."""
        x = self.x
        while True:
            engine = x.choose("prefill", self.prefill_tried)
            if engine is None:
                await self._without_prefill()
                return None
            if not await x.trusts(engine):
                self.prefill_tried.add(engine.route.id)
                continue
            era = engine.era
            outcome = await self._prefill_leg(engine, era)
            if isinstance(outcome, Handoff):
                if await self._trusted(engine, era, outcome):
                    return outcome
                continue
            if isinstance(outcome, Answer):
                x.send(outcome)  # the client's own mistake, told by the engine
                return None
            self.last = outcome
            await x.note_fault(engine, outcome)
            self.prefill_tried.add(engine.route.id)
            if routing.after_prefill_loss(self.route.on_prefill_loss, self.route.strict, self.prefill_retries) != "retry":
                await self._without_prefill()
                return None
            self.prefill_retries -= 1

    async def _trusted(self, engine: Engine, era: Era, handoff: Handoff) -> bool:
        """False if wrong KV may have been in the engine's cache meanwhile: nobody may pull what came of it."""
        try:
            if await engine.believes(era):
                return True
        except asyncio.CancelledError:
            self._over(handoff)
            raise
        handoff.end("dropped")
        self._prefill_again()
        return False

    async def _without_prefill(self) -> None:
        if not self.x.is_whole_now() and (
            routing.after_prefill_loss(self.route.on_prefill_loss, self.route.strict, 0) == "fail"
        ):
            raise error_of(self.last, self.x.model_name)
        await self._whole_instead(Reason.PREFILL_LOST, self.prefill_tried | self.decode_tried)

    async def _prefill_leg(self, engine: Engine, era: Era) -> Handoff | Answer | Fault:
        x, limits = self.x, self.x.router.limits
        x.prefill_id, x.decode_id = engine.route.id, ""
        kv_params = bodies.PREFILL_KV if self.route.connector == "nixl" else None
        request = engine.request(x.endpoint.encode(), bodies.one_token_bytes(x.body, kv_params, era.salt), x.forwarded)
        reserved = engine.load.reserve(x.need.uncached(engine.route.id), 0, x.need.prompt_tokens)
        self.ahead_tokens = reserved.ahead_tokens
        started = time.monotonic()
        if x.sent_at is None:
            x.sent_at = started
        x.router.sends(engine, x.prefix.keys)
        baseline = expiry.Baseline(engine, started, self.route.kv_lease_s, limits)
        collector = legs.Collector(limits.prefill_answer_bytes)
        made: Handoff | Answer | Fault | None = None
        try:
            outcome = await legs.run(engine.pool, request, collector, limits.prefill_s, limits)
            made = self._prefilled(engine, outcome, baseline, started)
            return made
        except asyncio.CancelledError:
            if collector.answer is not None:  # both came in one turn of the loop
                made = self._prefilled(engine, collector.answer, baseline, started)
                if isinstance(made, Handoff):
                    self._over(made)
            raise
        finally:
            reserved.release()
            if not isinstance(made, Handoff):
                baseline.cancel()

    def _prefilled(
        self, engine: Engine, outcome: Answer | Fault, baseline: expiry.Baseline, started: float
    ) -> Handoff | Answer | Fault:
        if isinstance(outcome, Fault):
            return outcome
        if outcome.status != 200:
            is_clients = 400 <= outcome.status < 500 and outcome.status not in (401, 403)
            return outcome if is_clients else Fault("status", status=outcome.status)
        x, ended = self.x, time.monotonic()
        engine.load.last_prefill_end = time.time()
        engine.answered()
        engine.proved_alive(started)
        x.prefill_ms, x.prefill_end = (ended - started) * 1000.0, ended
        return self._handoff(engine, outcome.body, baseline, started)

    def _handoff(self, engine: Engine, body: bytes, baseline: expiry.Baseline, started: float) -> Handoff | Fault:
        """What the prefill's answer says: the KV parameters, and how long the prompt really is."""
        x, ended = self.x, time.monotonic()
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Fault("protocol")
        if not isinstance(document, dict):
            return Fault("protocol")
        used = usage.of_document(document.get("usage"))
        if used.prompt:
            cached = x.need.cached.get(engine.route.id, 0) if used.cached is None else used.cached
            x.need.prompt_tokens = used.prompt
            engine.rates.saw_prefill(self.ahead_tokens + used.prompt - cached, ended - started)
        x.cached_tokens = used.cached
        params = document.get("kv_transfer_params")
        has_kv = self.route.connector == "nixl" and isinstance(params, dict) and params.get("do_remote_prefill") is True
        if self.route.connector == "nixl" and not has_kv:
            x.reason = Reason.NO_KV
        x.kv_bytes = self.route.kv_bytes(x.need.prompt_tokens) if x.reason is not Reason.NO_KV else 0
        # The answer may have lain here while this process was stopped: no longer than since the loop surely went round.
        prefill_end = max(started, x.router.went_round_at)
        handoff = Handoff(engine, params if has_kv else None, prefill_end, self.route.kv_lease_s, baseline, x.router.limits)
        if params is not None:
            handoff.prompt_details = orjson.dumps(used.details)
        handoff.enter(x.router.ledger, x.id.decode(), x.kv_bytes)
        return handoff

    # --- decode ---

    async def _decode(self, handoff: Handoff) -> bool:
        """True if the prompt must be prefilled again."""
        x = self.x
        x.look_up()
        while True:
            engine = self._next_decode(handoff)
            if engine is None:
                await self._without_decode()
                return False
            if not await x.trusts(engine):
                self.decode_tried.add(engine.route.id)
                continue
            if handoff.kv_params and not routing.decode_may_start(handoff.prefill_end, handoff.lease_s, time.monotonic()):
                return self._prefill_again()
            prefill_tokens = x.need.uncached(engine.route.id) if x.reason is Reason.NO_KV else 0
            outcome = await answer_leg(x, engine, handoff, prefill_tokens)
            if outcome is None:
                return False
            x.kv_lost |= handoff.kv_params is not None
            if isinstance(outcome, KvLost):
                return self._prefill_again()
            self.last = outcome
            await x.note_fault(engine, outcome)
            self.decode_tried.add(engine.route.id)
            if self.decode_retries == 0:
                raise error_of(outcome, x.model_name)
            self.decode_retries -= 1
            has_it_still = not outcome.sent or outcome.status in NEVER_SCHEDULED
            if not has_it_still and handoff.kv_params is not None and self._next_decode(handoff) is not None:
                # It may have pulled the KV, and the prefill engine may have given the blocks away since.
                return True

    def _next_decode(self, handoff: Handoff) -> Engine | None:
        x, prefill = self.x, handoff.engine.route
        source = Source(prefill.id, self.route.kv_bytes) if handoff.kv_params is not None else None
        return x.choose("decode", self.decode_tried, prefill, source)

    def _prefill_again(self) -> bool:
        if self.kv_retries == 0:
            raise errors.engine_timeout()
        self.kv_retries -= 1
        self.x.retries += 1
        self.x.reason = Reason.KV_LOST
        return True

    async def _without_decode(self) -> None:
        if self.route.strict and not self.x.is_whole_now():
            raise error_of(self.last, self.x.model_name)
        reason = Reason.DECODE_LOST if self.decode_tried else Reason.DECODE_UNAVAILABLE
        await self._whole_instead(reason, self.prefill_tried | self.decode_tried)

    async def _whole_instead(self, reason: Reason, tried: set[str]) -> None:
        x = self.x
        x.path, x.reason = Path.WHOLE, reason
        x.prefill_id = ""
        x.prefill_ms = x.prefill_end = x.kv_bytes = None
        await whole(x, tried, self.last)

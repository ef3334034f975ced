"""One client request from its arrival to its record: identity, body, path, answer. Its legs are in wholly and split."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import xxhash

from controlplane.core import routing
from controlplane.core.kvindex import NO_PREFIX, Prefix
from controlplane.core.protocol import EngineRoute
from controlplane.core.routing import Path, Reason
from controlplane.core.scoring import Leg, Source
from controlplane.router import admission, answers, bodies, errors, flows, identity, prefixes, record, usage, wholly
from controlplane.router.bodies import Body
from controlplane.router.client import ClientConnection
from controlplane.router.engines import Engine, Model
from controlplane.router.errors import ApiError
from controlplane.router.legs import Answer
from controlplane.router.reading import ClientRequest
from controlplane.router.relay import Relay, Streamed
from controlplane.router.seam import Seam, can_resume
from controlplane.router.upstream import Fault

if TYPE_CHECKING:
    from controlplane.router.app import Router
    from controlplane.router.precise import Found

log = logging.getLogger(__name__)

MAX_BROKEN = 2


class Exchange:
    """What most requests leave as it is has its value here, in the class: nearly all of a request's course."""

    need = routing.Request(prompt_tokens=0, output_tokens=0, session=0)
    """Replaced once the body has been read."""
    id = b""
    forwarded = b""
    prefix: Prefix = NO_PREFIX
    exact: Found | None = None
    """What the indexer answered."""
    expected_cached = 0
    """Prompt tokens that the engine which computes the prompt should hold already."""
    model_name = ""
    _judged = False
    path = Path.NONE
    reason = Reason.ROUTER
    arm = routing.MAIN
    canary = False
    """Its session is the canary's."""
    fell_back = False
    """And no engine of the canary could be asked."""
    kv_lost = False
    """A decode engine could not take over the prompt's KV."""
    prefill_id = ""
    decode_id = ""
    status = 0
    outcome = "ok"
    retries = 0
    broken = 0
    """Engines that broke or hung while they had this request."""
    _wary = False
    """One of its engines hung. Others may hang for the same reason, such as a node that died."""
    relay: Relay | None = None
    may_resume = False
    """A stream whose engine dies may be carried on by another."""
    resumes = 0
    seam: Seam | None = None
    """The client has a part of the stream, and what comes is the rest."""
    given_up: frozenset[str] = frozenset()
    """Engines that died under this stream."""
    charge = admission.NOTHING
    usage = usage.NOT_KNOWN
    cached_tokens: int | None = None
    prefill_ms: float | None = None
    prefill_end: float | None = None
    sent_at: float | None = None
    """Monotonic, when an engine was first sent a leg."""
    first_at: float | None = None
    kv_bytes: int | None = None
    team = ""
    key_digest = ""
    """Of the API key."""

    def __init__(
        self, router: Router, client: ClientConnection, request: ClientRequest, endpoint: str, generates: bool
    ) -> None:
        self.router = router
        self.client = client
        self.request = request
        self.endpoint = endpoint
        self.generates = generates
        self.arrived_at = time.time()
        self.started = time.monotonic()
        self.model: Model
        self.body: Body
        self.choices: dict[Leg, routing.Choice[Engine]] = {}
        """The newest of each leg: what was predicted, and the best engines that were not taken."""

    # --- the whole course ---

    async def run(self) -> None:
        """Serves the request. The client has its answer, or has gone, when this returns."""
        counters = self.router.counters
        counters.in_flight += 1
        counters.requests += 1
        self.router.retries.earn()
        self.id = identity.request_id(self.request.headers, self.router.ids_in_use)
        self.router.ids_in_use.add(self.id)
        self.forwarded = identity.forwarded(self.request.headers, self.id)
        close = False
        try:
            self._prepare()
            if self.router.precise is not None:
                await self.router.precise.inform(self)
            await flows.serve(self)
        except ApiError as error:
            close = self._refuse(error)
        except asyncio.CancelledError:
            close = True
            if self.client.gone:
                self.status, self.outcome = self.status or 499, "cancelled"
            else:
                self._refuse(errors.stopping())
        except Exception:  # a bug of ours must not leave a client without an answer
            log.exception("request %s failed inside the router", self.id.decode())
            close = self._refuse(ApiError(500, "The router failed.", Reason.ENGINE_FAULT, code="internal_error"))
        finally:
            if self.relay is not None:
                self.relay.abort()
            self.router.ids_in_use.discard(self.id)
            counters.in_flight -= 1
            self._record()
            self.relay = None  # it knows us: without this, memory would wait for the garbage collector
        self.client.finish(close or self.outcome == "cut")

    def _prepare(self) -> None:
        """Everything that is known before an engine is asked. Raises ApiError."""
        table = self.router.directory.table
        if table is None:
            raise errors.ApiError(
                503, "This router has no routing table yet.", Reason.NO_ENGINE, code="no_table", retry_after_s=2
            )
        key = self.router.key_of(table, self.client, self.request)
        self.team = key.team if key is not None else ""
        self.key_digest = key.sha256[:16] if key is not None else ""
        if self.request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise errors.bad_request("Compressed request bodies are not supported.", code="unsupported_encoding")
        self.body = bodies.parse(self.request.take_body(), self.router.limits)
        model = self.router.directory.models.get(self.body.model)
        if model is None:
            message = f"The model {self.body.model[:200]!r} does not exist."
            raise ApiError(404, message, Reason.UNKNOWN_MODEL, code="model_not_found", param="model")
        self.model, self.model_name = model, model.route.name
        identity.authorize(key, model.route, self.body.model)
        served = model.route.served_as(self.body.model)
        bodies.set_model(self.body, served)
        data = self.body.data
        if self.endpoint == "/v1/responses":
            bodies.check_stateless(data)
        admission.check_priority(key, data)
        if not model.route.share_prefixes and (salt := admission.team_salt(key, data)) is not None:
            bodies.set_field(self.body, "cache_salt", salt)
        session = identity.session(self.request.headers) or prefixes.session(data)
        self.need = routing.Request(
            prompt_tokens=bodies.prompt_tokens(data),
            output_tokens=bodies.output_tokens(data, model.usual_output),
            session=xxhash.xxh3_64_intdigest(session or self.id),
            splittable=False,
            generates=self.generates,
            blind=self.router.peers is not None and self.router.peers.stale,
        )
        self.may_resume = self.generates and self.body.stream and can_resume(data, self.endpoint)
        self.prefix = prefixes.of(data, served)
        self.look_up()
        self.charge = self.router.quotas.charge(key, self.need.prompt_tokens)
        if self.charge.refused is not None:
            raise self.charge.refused

    def judge_split(self) -> None:
        """Finds out whether the request can be split, once there is a model that would split it."""
        route = self.model.route
        if self._judged or not self.generates or (route.mode == "monolithic" and route.canary is None):
            return
        self._judged = True
        self.need.splittable = bodies.splittable(self.body.data)

    def look_up(self) -> None:
        """Brings up to date which engines hold how much of the prompt."""
        if self.router.siblings is not None:
            self.router.siblings.refresh()
        prompt, prefix = self.need.prompt_tokens, self.prefix
        if not prefix.keys and self.exact is None:
            return
        found = self.router.directory.index.match(prefix.keys)
        cached = {holder.name: int(prefix.tokens(blocks, prompt) * holder.trust) for holder, blocks in found.items()}
        if self.exact is not None and self.router.precise is not None:
            self.router.precise.correct(self, found, cached)
        self.need.cached = cached

    def engines(self) -> list[Engine]:
        """The model's engines as the newest table has them: it may have changed since the request came."""
        if self.router.siblings is not None:
            self.router.siblings.refresh()
        return self._newest().engines

    def _newest(self) -> Model:
        return self.router.directory.models.get(self.model_name, self.model)

    def is_whole_now(self) -> bool:
        """By the newest table, requests like this one are served whole: the model may have been switched since it came."""
        return routing.pick_arm(self._newest().route, self.need.session)[1] == "monolithic"

    def choose(
        self, leg: Leg, exclude: Collection[str], prefill: EngineRoute | None = None, source: Source | None = None
    ) -> Engine | None:
        """The engine for a leg by the newest table; None if none is left."""
        if self.given_up:
            exclude = self.given_up.union(exclude)
        choice = routing.choose(leg, self.engines(), self.need, self.arm, exclude, prefill, source)
        if choice.engine is not None:
            self.choices[leg] = choice
            if leg != "decode":
                self.expected_cached = self.need.cached.get(choice.engine.route.id, 0)
        elif leg == "whole" and self.arm != routing.MAIN:
            # The canary's engines have failed it, or have left its arm: main's need not.
            self.arm, self.reason = routing.MAIN, Reason.CANARY_UNAVAILABLE
            return self.choose(leg, exclude)
        return choice.engine

    # --- answers ---

    def head_of(self, content_type: bytes, length: int | None) -> bytes:
        """The head of a good answer whose bytes follow."""
        self.status = 200
        http10 = self.request.http10
        close = not self.request.keep_alive or self.router.stopping or (http10 and length is None)
        if close:
            self.request.keep_alive = False
        extra = b"cache-control: no-cache\r\n" + self.charge.lines
        return answers.head(200, self.id, self._route(), content_type, length, close, extra, http10)

    def send(self, answer: Answer) -> None:
        """A complete answer of an engine, good or a client's 4xx, to the client."""
        if self.seam is not None:
            raise errors.engine_fault()  # whatever it says, it is not the rest of a stream
        self.status = answer.status
        if answer.status >= 400:
            self.outcome = "client_error"
        extra = self.charge.lines
        retry_after = answer.headers.get(b"retry-after")
        if retry_after is not None and retry_after.isdigit():
            extra += b"retry-after: %b\r\n" % retry_after
        content_type, body = answer.headers.get(b"content-type", answers.JSON), answer.body
        if answer.status >= 400:
            content_type, body = answers.JSON, answers.refusal(answer.status, body)
        close = not self.request.keep_alive or self.router.stopping
        head = answers.head(answer.status, self.id, self._route(), content_type, len(body), close, extra)
        self.client.write(head + body)

    def _refuse(self, error: ApiError) -> bool:
        """Answers with an error, or ends a stream with it. True if the connection must be closed."""
        if self.relay is not None and self.relay.cut(error):
            self.outcome = "cut"
            return True
        self.status = error.status
        self.outcome = "client_error" if error.status < 500 else "engine_error"
        self.reason = error.reason
        close = not self.request.keep_alive
        self.router.write_error(self.client, error, self.id, self._route(), close, self.charge.lines)
        return False

    def _route(self) -> bytes:
        return answers.route(self.path, self.reason, self.prefill_id, self.decode_id)

    # --- notes for the record ---

    async def note_fault(self, engine: Engine, fault: Fault) -> None:
        """An engine failed this request. Counts against it, and against our budgets of retries: what breaks engines must not
        be shown to all of them. Raises ApiError when one is spent; else returns when the next may be asked."""
        self.retries += 1
        self.router.counters.faults[(engine.route.id, fault.kind)] += 1
        self.router.engine_failed(engine, fault)
        self._wary |= fault.kind == "hung"
        self.broken += fault.hard and fault.sent
        if self.broken == MAX_BROKEN or not self.router.retries.spend():
            raise wholly.error_of(fault, self.model_name)
        await asyncio.sleep(random.random() * self.router.limits.retry_jitter_s)  # noqa: S311

    def note_broken(self, engine: Engine, relay: Relay) -> None:
        """A stream broke off. What counts for the client is what it has got."""
        if self.first_at is None:
            self.first_at = relay.first_at
        if not relay.torn:
            self.router.counters.faults[(engine.route.id, "stream")] += 1
            self.router.engine_failed(engine, Fault("stream"))

    async def trusts(self, engine: Engine) -> bool:
        """Whether an engine may have the request: a wary one asks first whether the engine lives."""
        return not self._wary or await self.router.lives(engine)

    def note_answer(self, engine: Engine, relay: Relay, outcome: Answer | Streamed) -> None:
        """A leg that answered the client is over: its counts, and the engine's good name unless the stream was cut."""
        if self.seam is None:
            self.first_at = relay.first_at
        if isinstance(outcome, Streamed):
            told = relay.watch.usage
            self.usage = usage.of_document(told if self.seam is None or told is None else self.seam.total(told))
            if outcome.cut:
                self.outcome = "cut"
                self.router.counters.faults[(engine.route.id, "stream")] += 1
                self.router.engine_failed(engine, Fault("stream"))
                return
        elif outcome.status == 200:
            document = outcome.document
            self.usage = usage.of_document(document.get("usage")) if document is not None else usage.of_body(outcome.body)
            engine.produced += self.usage.output or 0
        engine.answered()
        if self.usage.output:
            self.model.saw_output(self.usage.output)

    def _record(self) -> None:
        now = time.monotonic()
        counters = self.router.counters
        if self.outcome in ("engine_error", "cut"):
            counters.failed += 1
        counters.retried += 1 if self.retries else 0
        counters.by_outcome[(self.model_name, self.path, self.reason, self.outcome)] += 1
        if not self.model_name:
            return  # never got as far as a model: counted, not told one by one
        if self.outcome == "ok" and not self.resumes:  # else what was expected and what was told are of two prompts
            self._check_index()
        relay = self.relay
        if relay is not None and self.outcome in ("cancelled", "cut") and self.status == 200:
            self._count_what_went_out(relay)
        reached = self.outcome in ("ok", "cancelled", "cut") and (self.decode_id or self.prefill_id)
        self.router.quotas.settle(self.charge, admission.tokens_used(self.usage, self.charge.tokens, bool(reached)))
        record.make(self, now)

    def _check_index(self) -> None:
        """Compares what the engine that computed the prompt had of it with what was expected, if it tells."""
        split = self.prefill_end is not None
        choice = self.choices.get("prefill" if split else "whole")
        told = self.cached_tokens if split else self.usage.cached
        if choice is not None and choice.engine is not None and told is not None:
            if self.router.precise is not None and self.router.precise.check(self, choice.engine, told):
                return
            choice.engine.holder.found(self.expected_cached, told)

    def _count_what_went_out(self, relay: Relay) -> None:
        """For a stream that never came to its usage event."""
        if self.seam is None:
            self.first_at = relay.first_at
        if self.usage.output is None:
            counted = self.need.prompt_tokens if self.prefill_end is not None else None
            self.usage = usage.Usage(prompt=counted, output=relay.events)

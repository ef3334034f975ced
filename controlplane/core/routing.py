"""Which path a request takes and which engine serves each of its legs, with a reason code. Pure: no I/O, no clock.

The router keeps one `Candidate` per engine up to date (its load and the measured rates of its kind) and asks here. A score
is the predicted number of seconds until the engine could serve the leg: work queued ahead, divided by the measured rate,
plus the leg's own prefill time (design.md section 6, first form). Session and hash values come in as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from controlplane.core.protocol import EngineRoute, Mode, ModelRoute, OnPrefillLoss, Role
from controlplane.core.reasons import REASON_DOCS as REASON_DOCS
from controlplane.core.reasons import Path as Path
from controlplane.core.reasons import Reason as Reason

TIE_S = 0.001
"""Scores closer than this are equal: the session's hash decides, so that a session stays where it was."""

DEFAULT_PREFILL_TOKENS_PER_S = 8000.0
DEFAULT_DECODE_TOKENS_PER_S = 1000.0

_MASK = (1 << 64) - 1


# --- What the router knows ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rates:
    """Measured by the router, shared by engines of one model, GPU kind and degree of parallelism: an engine that is
    slower than its twins shows it by its queue, and a new one is not starved for want of samples."""

    prefill: float = DEFAULT_PREFILL_TOKENS_PER_S
    """Prompt tokens per second of one prefill."""
    decode: float = DEFAULT_DECODE_TOKENS_PER_S
    """Output tokens per second of a busy engine: the highest seen, slowly forgotten."""
    prefill_seen: bool = False

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        if tokens <= 0 or seconds <= 0.0005:
            return
        sample = tokens / seconds
        self.prefill = self.prefill + 0.1 * (sample - self.prefill) if self.prefill_seen else sample
        self.prefill_seen = True

    def saw_decode(self, tokens_per_s: float) -> None:
        """One engine's output lately. Called about twice a second for each engine that has work."""
        self.decode = max(tokens_per_s, self.decode * 0.995, 1.0)


@dataclass(slots=True)
class Load:
    """What this router has reserved on one engine. Tokens are estimates made on choice; the same amounts are given back."""

    in_flight: int = 0
    prefill_tokens: int = 0
    """Prompt tokens of legs that have not finished their prefill."""
    decode_tokens: int = 0
    """Expected output tokens of open legs."""
    last_prefill_end: float | None = None
    """Unix seconds."""

    def reserve(self, prefill_tokens: int, decode_tokens: int) -> Reservation:
        self.in_flight += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens
        return Reservation(self, prefill_tokens, decode_tokens)


@dataclass(slots=True)
class Reservation:
    """One leg's share of a Load. `prefill_done` and `release` may be called in any order, any number of times."""

    load: Load
    prefill_tokens: int
    decode_tokens: int
    open: bool = True

    def prefill_done(self) -> None:
        self.load.prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0

    def release(self) -> None:
        if not self.open:
            return
        self.open = False
        self.prefill_done()
        self.load.decode_tokens -= self.decode_tokens
        self.load.in_flight -= 1


class Candidate(Protocol):
    """An engine as the decisions see it."""

    @property
    def route(self) -> EngineRoute: ...
    @property
    def load(self) -> Load: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def usable(self) -> bool:
        """False while this router has set the engine aside."""
        ...

    @property
    def salt(self) -> int:
        """A hash of the engine's id, equal on all routers."""
        ...


C = TypeVar("C", bound=Candidate)

Leg = Literal["prefill", "decode", "whole"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a decision needs of a request. Tokens are estimates until an engine has counted them."""

    prompt_tokens: int
    output_tokens: int
    session: int
    """A 64-bit hash: of the session if the client named one, else of the request."""
    splittable: bool = True
    generates: bool = True
    """False for paths that are never split."""


# --- Decisions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    path: Path
    reason: Reason
    arm: str = "main"


@dataclass(frozen=True, slots=True)
class Choice(Generic[C]):
    """`engine` is None when nothing was left; `rejected` then says why, engine by engine."""

    engine: C | None
    seconds: float = 0.0
    rejected: tuple[tuple[str, str], ...] = field(default=())


WHOLE_ROLES: tuple[Role, ...] = ("mixed", "decode", "prefill")
"""Roles that may serve a whole request, best first: a mode is being switched, or a pool has failed."""


def pick_arm(model: ModelRoute, session: int) -> tuple[str, Mode]:
    """The arm and mode of this session: always the same for the same session and share."""
    canary = model.canary
    if canary is not None and mix(session, 0x63616E617279) / _MASK < canary.share:
        return canary.arm, canary.mode
    return "main", model.mode


def decide_path(model: ModelRoute, engines: Sequence[Candidate], request: Request) -> Decision:
    """The path of a request. NONE means that no engine can take it now, with the reason why."""
    arm, mode = pick_arm(model, request.session)
    ready = [engine for engine in engines if engine.usable and engine.route.state == "ready" and engine.route.arm == arm]
    if not ready:
        return Decision(Path.NONE, Reason.NO_ENGINE, arm)
    if not request.generates:
        return Decision(Path.WHOLE, Reason.WHOLE_ENDPOINT, arm)
    if mode == "monolithic":
        return Decision(Path.WHOLE, Reason.MONOLITHIC, arm)
    if not request.splittable:
        return Decision(Path.WHOLE, Reason.UNSUPPORTED_SPLIT, arm)
    if mode == "conditional":
        long_enough = request.prompt_tokens >= model.conditional.min_uncached_tokens
        if long_enough and _missing_role(ready) is None:
            return Decision(Path.DISAGGREGATED, Reason.CONDITIONAL_REMOTE, arm)
        return Decision(Path.WHOLE, Reason.CONDITIONAL_LOCAL, arm)
    missing = _missing_role(ready)
    if missing is None:
        return Decision(Path.DISAGGREGATED, Reason.DISAGGREGATED, arm)
    return Decision(Path.NONE, Reason.NO_ENGINE, arm) if model.strict else Decision(Path.WHOLE, missing, arm)


def _missing_role(ready: Sequence[Candidate]) -> Reason | None:
    """None if some prefill and some decode engine fit each other."""
    prefill = {engine.route.compat for engine in ready if engine.route.role == "prefill"}
    decode = {engine.route.compat for engine in ready if engine.route.role == "decode"}
    if prefill & decode:
        return None
    return Reason.DECODE_UNAVAILABLE if prefill and not decode else Reason.PREFILL_UNAVAILABLE


def choose(
    leg: Leg,
    engines: Sequence[C],
    request: Request,
    arm: str = "main",
    exclude: Collection[str] = (),
    compat: str | None = None,
) -> Choice[C]:
    """The engine that could serve `leg` soonest. `exclude` holds ids that failed this request already; `compat` (for
    decode) is the prefill engine's. A prefill engine is only chosen if a usable decode engine fits it."""
    if leg == "prefill":
        decodes = {e.route.compat for e in engines if _refusal(e, ("decode",), arm, (), None) is None}
        kept, rejected = _keep(engines, lambda e: _refusal(e, ("prefill",), arm, exclude, None) or _no_peer(e, decodes))
    elif leg == "decode":
        kept, rejected = _keep(engines, lambda e: _refusal(e, ("decode",), arm, exclude, compat))
    else:
        kept, rejected = _keep(engines, lambda e: _refusal(e, WHOLE_ROLES, arm, exclude, None))
        best_role = min((WHOLE_ROLES.index(e.route.role) for e in kept), default=0)
        kept = [e for e in kept if e.route.role == WHOLE_ROLES[best_role]]
    if not kept:
        return Choice(None, rejected=tuple(rejected))
    scored = [(predicted_seconds(leg, engine, request), engine) for engine in kept]
    limit = min(seconds for seconds, _ in scored) + TIE_S
    seconds, engine = max((pair for pair in scored if pair[0] <= limit), key=lambda pair: mix(request.session, pair[1].salt))
    return Choice(engine, seconds)


def predicted_seconds(leg: Leg, engine: Candidate, request: Request) -> float:
    """Seconds until `engine` could serve the leg: queued work ÷ rate, plus its own prefill; a low weight adds to it."""
    load, rates = engine.load, engine.rates
    if leg == "prefill":
        seconds = (load.prefill_tokens + request.prompt_tokens) / rates.prefill
    elif leg == "decode":
        seconds = load.prefill_tokens / rates.prefill + load.decode_tokens / rates.decode
    else:
        seconds = (load.prefill_tokens + request.prompt_tokens) / rates.prefill + load.decode_tokens / rates.decode
    if load.in_flight >= engine.route.max_num_seqs:
        # The next place frees up after about one running request's share of the queue.
        seconds += load.decode_tokens / max(1, load.in_flight) / rates.decode * engine.route.max_num_seqs
    return seconds / max(engine.route.weight, 0.01)


def _keep(engines: Sequence[C], refusal: Callable[[C], str | None]) -> tuple[list[C], list[tuple[str, str]]]:
    kept: list[C] = []
    rejected: list[tuple[str, str]] = []
    for engine in engines:
        why = refusal(engine)
        if why is None:
            kept.append(engine)
        else:
            rejected.append((engine.route.id, why))
    return kept, rejected


def _refusal(engine: Candidate, roles: Sequence[Role], arm: str, exclude: Collection[str], compat: str | None) -> str | None:
    route = engine.route
    if route.role not in roles:
        return f"role is {route.role}"
    if route.state != "ready":
        return f"state is {route.state}"
    if route.arm != arm:
        return f"arm is {route.arm}"
    if route.id in exclude:
        return "failed this request"
    if not engine.usable:
        return "set aside after failures"
    if compat is not None and route.compat != compat:
        return "not compatible with the prefill engine"
    return None


def _no_peer(engine: Candidate, decodes: Collection[str]) -> str | None:
    return None if engine.route.compat in decodes else "no usable decode engine is compatible with it"


def mix(session: int, salt: int) -> int:
    """Rendezvous weight of an engine for a session: splitmix64's finalizer (Steele, Lea, Flood 2014) over both."""
    z = (session ^ (salt * 0x9E3779B97F4A7C15)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


# --- The lease ------------------------------------------------------------------------------------------------------------


def decode_may_start(prefill_end: float, lease_s: float, now: float) -> bool:
    """No decode leg later than half the lease after prefill ended."""
    return now - prefill_end <= lease_s / 2


def after_prefill_loss(policy: OnPrefillLoss, strict: bool, retries_left: int) -> Literal["retry", "local", "fail"]:
    """What to do when a prefill leg failed. `retry` needs another engine; without one ask again with no retries left."""
    if policy != "local" and policy != "fail" and retries_left > 0:
        return "retry"
    return "fail" if policy == "fail" or strict else "local"

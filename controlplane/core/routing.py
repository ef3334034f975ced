"""Which path a request takes and which engine serves each of its legs, with a reason code. Pure: no I/O, no clock.

The router keeps one `Candidate` per engine up to date (its load and the measured rates of its kind) and asks here. A score
is the predicted number of seconds until the engine could serve the leg (core.scoring; design.md section 6). Session and hash
values come in as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from controlplane.core.pairing import may_pair, moved_on, open_compats, why_not_paired
from controlplane.core.protocol import EngineRoute, Mode, ModelRoute, OnPrefillLoss, Role
from controlplane.core.reasons import REASON_DOCS as REASON_DOCS
from controlplane.core.reasons import Path as Path
from controlplane.core.reasons import Reason as Reason
from controlplane.core.scoring import Candidate as Candidate
from controlplane.core.scoring import Estimate, Leg, Source, estimate
from controlplane.core.scoring import Links as Links
from controlplane.core.scoring import Load as Load
from controlplane.core.scoring import Rates as Rates
from controlplane.core.scoring import Request as Request
from controlplane.core.scoring import Reservation as Reservation

TIE_S = 0.001
"""Scores closer than this are equal: the session's hash decides, so that a session stays where it was."""

MAIN = "main"
"""The arm of everybody but a canary's sessions."""

_MASK = (1 << 64) - 1
_LOW = (1 << 30) - 1

C = TypeVar("C", bound=Candidate)


# --- Paths ----------------------------------------------------------------------------------------------------------------


class Decision:
    __slots__ = ("arm", "canary", "path", "reason")

    def __init__(self, path: Path, reason: Reason, arm: str = MAIN, canary: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.arm = arm
        """Of the engines that may serve it."""
        self.canary = canary
        """Its session is the canary's, whoever serves it."""


class Seat(NamedTuple):
    """Where a session belongs: whose engines serve it, and in which mode."""

    arm: str
    mode: Mode
    canary: bool


def pick_arm(model: ModelRoute, session: int) -> Seat:
    """Always the same for the same session, canary and share; when the share changes, only those sessions move that must."""
    canary = model.canary
    if canary is not None and mix(session, _CANARY_SALT + canary.id) / _MASK < canary.share:
        return Seat(MAIN if canary.shared else canary.arm, canary.mode, True)
    return Seat(MAIN, model.mode, False)


_CANARY_SALT = 0x63616E617279
_NO_PAIR = frozenset({Reason.PREFILL_UNAVAILABLE, Reason.DECODE_UNAVAILABLE, Reason.CONDITIONAL_NO_PAIR})


def decide_path(model: ModelRoute, engines: Sequence[Candidate], request: Request) -> Decision:
    """The path of a request. NONE means that no engine can take it now, with the reason why.

    A session of the canary is served by main, as main's are, while the canary has no usable engine, or no pair in a mode
    that needs one."""
    if model.canary is None:
        return _path(model, engines, request, MAIN, model.mode)
    arm, mode, canary = pick_arm(model, request.session)
    decision = _path(model, engines, request, arm, mode)
    if not canary:
        return decision
    if arm != MAIN and (decision.path is Path.NONE or decision.reason in _NO_PAIR):
        instead = _path(model, engines, request, MAIN, model.mode)
        if instead.path is not Path.NONE:
            return Decision(instead.path, Reason.CANARY_UNAVAILABLE, instead.arm, canary=True)
    decision.canary = True
    return decision


def _path(model: ModelRoute, engines: Sequence[Candidate], request: Request, arm: str, mode: Mode) -> Decision:
    for engine in engines:
        if _is_ready(engine, arm):
            break
    else:
        return Decision(Path.NONE, Reason.NO_ENGINE, arm)
    if not request.generates:
        return Decision(Path.WHOLE, Reason.WHOLE_ENDPOINT, arm)
    if mode == "monolithic":
        return Decision(Path.WHOLE, Reason.MONOLITHIC, arm)
    if not request.splittable:
        return Decision(Path.WHOLE, Reason.UNSUPPORTED_SPLIT, arm)
    ready = [engine for engine in engines if _is_ready(engine, arm)]
    missing = _missing_role(ready)
    if mode == "conditional":
        reason = Reason.CONDITIONAL_NO_PAIR if missing else conditional_reason(model, ready, request, arm)
        return Decision(Path.DISAGGREGATED if reason is Reason.CONDITIONAL_REMOTE else Path.WHOLE, reason, arm)
    if missing is None:
        return Decision(Path.DISAGGREGATED, Reason.DISAGGREGATED, arm)
    return Decision(Path.NONE, Reason.NO_ENGINE, arm) if model.strict else Decision(Path.WHOLE, missing, arm)


def _is_ready(engine: Candidate, arm: str) -> bool:
    route = engine.route
    return route.state == "ready" and route.arm == arm and engine.usable


def _missing_role(ready: Sequence[Candidate]) -> Reason | None:
    """None if some prefill and some decode engine fit each other."""
    prefill = [engine.route for engine in ready if engine.route.role == "prefill"]
    decode = [engine.route for engine in ready if engine.route.role == "decode"]
    if open_compats(prefill) & open_compats(decode) or any(may_pair(one, other) for one in prefill for other in decode):
        return None
    return Reason.DECODE_UNAVAILABLE if prefill and not decode else Reason.PREFILL_UNAVAILABLE


def conditional_reason(model: ModelRoute, engines: Sequence[C], request: Request, arm: str) -> Reason:
    """Mode conditional, with a pair ready: CONDITIONAL_REMOTE to split, else the rule that keeps it on one engine.

    Remote must reach both thresholds and cost no more waiting, summed over all requests: its own until the first token,
    and that of the answers which a prefill of its uncached tokens would hold up on the engine that runs them."""
    local = choose("whole", engines, request, arm)
    if local.engine is None:
        return Reason.CONDITIONAL_REMOTE
    uncached = request.uncached(local.engine.route.id)
    if uncached < model.conditional.min_uncached_tokens:
        return Reason.CONDITIONAL_SHORT
    if uncached < model.conditional.min_uncached_ratio * request.prompt_tokens:
        return Reason.CONDITIONAL_CACHED
    prefill = choose("prefill", engines, request, arm)
    if prefill.engine is None:
        return Reason.CONDITIONAL_NO_PAIR
    source = Source(prefill.engine.route.id, model.kv_bytes)
    decode = choose("decode", engines, request, arm, prefill=prefill.engine.route, source=source)
    harm = local.estimate.own * local.engine.load.in_flight
    sooner_here = local.seconds + harm < prefill.seconds + decode.seconds - TIE_S
    return Reason.CONDITIONAL_LOCAL if sooner_here else Reason.CONDITIONAL_REMOTE


# --- Engines --------------------------------------------------------------------------------------------------------------

NOTHING = Estimate(0.0, 0.0, 0.0)


class Choice(Generic[C]):
    """`engine` is None when nothing was left; `rejected` then says why, engine by engine."""

    __slots__ = ("engine", "estimate", "others", "rejected")

    def __init__(
        self,
        engine: C | None,
        estimate: Estimate = NOTHING,
        rejected: tuple[tuple[str, str], ...] = (),
        others: tuple[tuple[str, float], ...] = (),
    ) -> None:
        self.engine = engine
        self.estimate = estimate
        self.rejected = rejected
        self.others = others
        """The two best engines that were not chosen, with their scores in seconds; best first."""

    @property
    def seconds(self) -> float:
        """Predicted, until the engine could answer."""
        return self.estimate.ahead + self.estimate.own


WHOLE_ROLES: tuple[Role, ...] = ("mixed", "decode", "prefill")
"""Roles that may serve a whole request, best first: a mode is being switched, or a pool has failed."""
_PREFILL: tuple[Role, ...] = ("prefill",)
_DECODE: tuple[Role, ...] = ("decode",)


def choose(
    leg: Leg,
    engines: Sequence[C],
    request: Request,
    arm: str = MAIN,
    exclude: Collection[str] = (),
    prefill: EngineRoute | None = None,
    source: Source | None = None,
) -> Choice[C]:
    """The engine that could serve `leg` soonest. `exclude` holds ids that failed this request already; `prefill` (for
    decode) is the engine that did the prefill, and `source` says what there is to pull. A prefill engine is only chosen if
    a usable decode engine fits it."""
    if leg == "prefill":
        decodes = [engine.route for engine in _fitting(engines, _DECODE, arm, (), None)]
        compats = open_compats(decodes)
        kept = [
            engine
            for engine in _fitting(engines, _PREFILL, arm, exclude, None)
            if ((route := engine.route).compat in compats and not route.peers)
            or any(may_pair(route, decode) for decode in decodes)
        ]
        if not kept:
            return _nothing(engines, lambda e: _refusal(e, _PREFILL, arm, exclude, None) or NO_PEER)
    else:
        roles = WHOLE_ROLES if leg == "whole" else _DECODE
        kept = _fitting(engines, roles, arm, exclude, prefill)
        if not kept and prefill is not None:
            kept = moved_on(engines, arm, exclude, prefill)
        if not kept:
            return _nothing(engines, lambda e: _refusal(e, roles, arm, exclude, prefill) or "")
        if leg == "whole":
            kept = _of_best_role(kept)
    if request.blind and len(kept) > 2:
        kept = sorted(kept, key=lambda engine: draw(request.session, engine.salt))[-2:]
    if len(kept) == 1:
        return Choice(kept[0], estimate(leg, kept[0], request, source))
    return _best([(estimate(leg, engine, request, source), engine) for engine in kept], request)


def _of_best_role(kept: list[C]) -> list[C]:
    for role in WHOLE_ROLES:
        best = [engine for engine in kept if engine.route.role == role]
        if best:
            return best
    return kept


def _best(scored: list[tuple[Estimate, C]], request: Request) -> Choice[C]:
    if len(scored) > 2 or scored[1][0].score < scored[0][0].score:
        scored.sort(key=_score)
    its, engine = scored[0]
    limit = its.score + TIE_S
    if scored[1][0].score <= limit:
        weight = -1
        for each, candidate in scored:
            if each.score > limit:
                break
            if (its_weight := draw(request.session, candidate.salt)) > weight:
                its, engine, weight = each, candidate, its_weight
    others = [(other.route.id, each.score) for each, other in scored[:3] if other is not engine]
    return Choice(engine, its, others=tuple(others[:2]))


def _score(pair: tuple[Estimate, object]) -> float:
    return pair[0].score


def _nothing(engines: Sequence[C], refusal: Callable[[C], str]) -> Choice[C]:
    return Choice(None, rejected=tuple((engine.route.id, refusal(engine)) for engine in engines))


NO_PEER = "no usable decode engine is compatible with it, or verified"


def _fitting(
    engines: Sequence[C], roles: Collection[Role], arm: str, exclude: Collection[str], prefill: EngineRoute | None
) -> list[C]:
    """Those that `_refusal` would not refuse."""
    limited = prefill is not None and bool(prefill.peers)
    return [
        engine
        for engine in engines
        if (route := engine.route).role in roles
        and route.state == "ready"
        and route.arm == arm
        and route.id not in exclude
        and (
            prefill is None
            or (route.compat == prefill.compat and not (limited or route.peers) and route.id != prefill.id)
            or may_pair(prefill, route)
        )
        and engine.usable
    ]


def _refusal(
    engine: Candidate, roles: Collection[Role], arm: str, exclude: Collection[str], prefill: EngineRoute | None
) -> str | None:
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
    if prefill is None or may_pair(prefill, route):
        return None
    return why_not_paired(prefill, route)


def draw(session: int, salt: int) -> int:
    """Rendezvous weight of an engine for a session, out of the low 60 bits of both: three rounds of multiplying 30 bits and
    folding. No product needs more than 60 bits, so that compiled code makes no objects for them."""
    both = session ^ salt
    z = (both & _LOW) * 0x2C1B3C6D + ((both >> 30) & _LOW)
    z = ((z ^ (z >> 30)) & _LOW) * 0x297A2D39
    z = ((z ^ (z >> 30)) & _LOW) * 0x35A1E9C5
    return (z ^ (z >> 30)) & _LOW


def mix(session: int, salt: int) -> int:
    """64 bits of both, evenly spread: splitmix64's finalizer (Steele, Lea, Flood 2014)."""
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

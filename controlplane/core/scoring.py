"""How many seconds until an engine could serve a leg: what the router has reserved on it, measured rates, prefixes. Pure.

Work queued ahead ÷ the engine's measured rate + `PREFIX_WEIGHT` x the leg's uncached tokens ÷ its prefill rate (at most
`PATIENCE_S` more than their plain seconds); for a decode leg, instead of the last, the KV it must pull ÷ the pair's measured
bandwidth. See `manage.py bench routing_quality` for what these two constants do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from controlplane.core.protocol import EngineRoute

PREFIX_WEIGHT = 5.0
"""An uncached token counts this often: a prefix that is computed twice takes cache and time from requests to come."""
PATIENCE_S = 5.0
"""For a prefix that is held elsewhere a request never waits longer than this beyond what would be soonest for it: an engine
with a hot prefix and a long queue is passed by, and then another engine holds that prefix too."""

DEFAULT_PREFILL_TOKENS_PER_S = 8000.0
DEFAULT_DECODE_TOKENS_PER_S = 1000.0

FULL_SAMPLE_TOKENS = 1000
"""A shorter prefill shows latency rather than the rate, and counts for less."""

DEFAULT_LINK_BYTES_PER_S = 12.5e9
"""100 Gb/s, until something was pulled."""
FULL_SAMPLE_BYTES = 64_000_000
"""A smaller pull shows latency rather than bandwidth: it can only raise the estimate."""
MAX_LINKS = 1024

Leg = Literal["prefill", "decode", "whole"]

NOTHING_CACHED: Mapping[str, int] = {}


@dataclass(slots=True)
class Rates:
    """Measured by the router, shared by engines of one model, GPU kind and degree of parallelism: an engine that is
    slower than its twins shows it by its queue, and a new one is not starved for want of samples."""

    prefill: float = DEFAULT_PREFILL_TOKENS_PER_S
    """Prompt tokens per second of a busy engine."""
    decode: float = DEFAULT_DECODE_TOKENS_PER_S
    """Output tokens per second of a busy engine: the highest seen, slowly forgotten."""
    prefill_seen: bool = False

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """`tokens` computed in `seconds`, those that were queued ahead of the leg included."""
        if tokens <= 0 or seconds <= 0.0005:
            return
        sample = tokens / seconds
        share = min(1.0, tokens / FULL_SAMPLE_TOKENS)
        self.prefill += (0.1 * share if self.prefill_seen else share) * (sample - self.prefill)
        self.prefill_seen |= share == 1.0

    def saw_decode(self, tokens_per_s: float) -> None:
        """One engine's output lately. Called about twice a second for each engine that has work."""
        self.decode = max(tokens_per_s, self.decode * 0.995, 1.0)


class Links:
    """How fast one engine pulls KV from each of its peers: the highest seen, slowly forgotten, because what a router can
    time (a decode leg up to its first byte) also holds queues and a step."""

    __slots__ = ("_bytes_per_s",)

    def __init__(self) -> None:
        self._bytes_per_s: dict[str, float] = {}

    def bytes_per_s(self, peer: str) -> float:
        return self._bytes_per_s.get(peer, DEFAULT_LINK_BYTES_PER_S)

    def saw(self, peer: str, size: int, seconds: float) -> None:
        """`size` bytes of KV came from `peer` in at most `seconds`."""
        if size <= 0 or seconds <= 0:
            return
        sample, known = size / seconds, self._bytes_per_s.pop(peer, None)
        if size >= FULL_SAMPLE_BYTES:
            known = max(sample, (known or 0.0) * 0.95)
        elif known is not None:
            known = max(sample, known)
        if known is not None:
            self._bytes_per_s[peer] = known
            if len(self._bytes_per_s) > MAX_LINKS:
                del self._bytes_per_s[next(iter(self._bytes_per_s))]


class Load:
    """What this router has reserved on one engine. Tokens are estimates made on choice; the same amounts are given back."""

    __slots__ = ("decode_tokens", "elsewhere", "in_flight", "kv_tokens", "last_prefill_end", "prefill_tokens")

    def __init__(self, prefill_tokens: int = 0, decode_tokens: int = 0) -> None:
        self.in_flight = 0
        self.prefill_tokens = prefill_tokens
        """Uncached prompt tokens of legs that have not finished their prefill."""
        self.decode_tokens = decode_tokens
        """Expected output tokens of open legs."""
        self.kv_tokens = 0
        """Of its KV cache, as far as open legs need it for prompts and answers."""
        self.last_prefill_end: float | None = None
        """Unix seconds."""
        self.elsewhere = 0
        """Of `in_flight`, the legs of other router processes, where those are known."""

    @property
    def own_in_flight(self) -> int:
        return self.in_flight - self.elsewhere

    def reserve(self, prefill_tokens: int, decode_tokens: int, kv_tokens: int = 0) -> Reservation:
        ahead = self.prefill_tokens
        self.in_flight += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens
        self.kv_tokens += kv_tokens
        self.changed()
        return Reservation(self, prefill_tokens, decode_tokens, kv_tokens, ahead)

    def changed(self) -> None:
        """Called after every change of what is reserved here, for loads that others look at."""


class Reservation:
    """One leg's share of a Load. `prefill_done` and `release` may be called in any order, any number of times."""

    __slots__ = ("ahead_tokens", "decode_tokens", "kv_tokens", "load", "open", "prefill_tokens")

    def __init__(self, load: Load, prefill_tokens: int, decode_tokens: int, kv_tokens: int, ahead_tokens: int) -> None:
        self.load = load
        self.prefill_tokens = prefill_tokens
        self.decode_tokens = decode_tokens
        self.kv_tokens = kv_tokens
        self.ahead_tokens = ahead_tokens
        """Prompt tokens that were reserved before this leg."""
        self.open = True

    def prefill_done(self) -> None:
        self.load.prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0
        self.load.changed()

    def release(self) -> None:
        if not self.open:
            return
        self.open = False
        load = self.load
        load.prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0
        load.decode_tokens -= self.decode_tokens
        load.kv_tokens -= self.kv_tokens
        load.in_flight -= 1
        load.changed()


class Candidate(Protocol):
    """An engine as the decisions see it."""

    @property
    def route(self) -> EngineRoute: ...
    @property
    def load(self) -> Load: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def links(self) -> Links: ...
    @property
    def kv_tokens(self) -> int:
        """Tokens its KV cache has room for; 0: not known."""
        ...

    @property
    def usable(self) -> bool:
        """False while this router has set the engine aside."""
        ...

    @property
    def salt(self) -> int:
        """A hash of the engine's id, equal on all routers."""
        ...


class Request:
    """What a decision needs of a request. Tokens are estimates until an engine has counted them."""

    __slots__ = ("blind", "cached", "generates", "output_tokens", "prompt_tokens", "session", "splittable")

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        session: int,
        splittable: bool = True,
        generates: bool = True,
        blind: bool = False,
        cached: Mapping[str, int] = NOTHING_CACHED,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.session = session
        """A 64-bit hash: of the session if the client named one, else of the request."""
        self.splittable = splittable
        self.generates = generates
        """False for paths that are never split."""
        self.blind = blind
        """What other routers have reserved is not known now: only two candidates that its hash picks are compared, so that
        routers do not all choose the same engine."""
        self.cached = cached
        """Engine id -> tokens of the prompt that its KV cache holds, as far as is known now."""

    def uncached(self, engine: str) -> int:
        """Prompt tokens the engine has to compute or to fetch: at least one, as engines always compute the last."""
        return max(1, self.prompt_tokens - self.cached.get(engine, 0))


class Source(NamedTuple):
    """Where a decode leg's KV comes from."""

    engine: str
    """Id of the prefill engine."""
    kv_bytes: Callable[[int], int]
    """Tokens -> bytes to move."""


class Estimate:
    """Seconds; `ahead` + `own` until the engine could answer, were its `weight` 1."""

    __slots__ = ("ahead", "own", "score")

    def __init__(self, ahead: float, own: float, score: float) -> None:
        self.ahead = ahead
        self.own = own
        self.score = score
        """What engines are compared by: `own` counts more for uncached tokens, an engine's low weight adds to all of it."""


def estimate(leg: Leg, engine: Candidate, request: Request, source: Source | None = None) -> Estimate:
    """When `engine` could serve the leg. `source`: for a decode leg whose KV is to be pulled."""
    route, rates = engine.route, engine.rates
    ahead = seconds_ahead(engine, request)
    if leg != "decode":
        own = request.uncached(route.id) / rates.prefill
        score = prefix_score(ahead, own)
    elif source is not None:
        own = source.kv_bytes(request.uncached(route.id)) / engine.links.bytes_per_s(source.engine)
        score = ahead + own
    else:
        own, score = 0.0, ahead
    return Estimate(ahead, own, score / max(route.weight, 0.01))


def prefix_score(ahead_s: float, own_s: float) -> float:
    """What an engine is compared by that waits `ahead_s` and then computes uncached tokens for `own_s`, seconds. Forecasts
    use it too."""
    return ahead_s + own_s + min((PREFIX_WEIGHT - 1.0) * own_s, PATIENCE_S)


def seconds_ahead(engine: Candidate, request: Request) -> float:
    """Until the work reserved on the engine has been done, as far as the request has to wait for it."""
    load, rates = engine.load, engine.rates
    seconds = load.prefill_tokens / rates.prefill + load.decode_tokens / rates.decode
    if load.in_flight >= engine.route.max_num_seqs:
        # The next place frees up after about one running request's share of the queue.
        seconds += load.decode_tokens / max(1, load.in_flight) / rates.decode * engine.route.max_num_seqs
    if engine.kv_tokens and load.kv_tokens:
        over = load.kv_tokens + request.prompt_tokens + request.output_tokens - engine.kv_tokens
        if over > 0:
            # Until answers have ended that hold as many tokens.
            seconds += over * load.decode_tokens / load.kv_tokens / rates.decode
    return seconds

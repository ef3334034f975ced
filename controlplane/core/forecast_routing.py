"""Which engine of the forecast takes a leg: the design's predicted seconds (section 6) in their simple form. Pure.

Seconds until an engine could serve a leg = prompt tokens ahead ÷ its prefill rate + answer tokens ahead ÷ its decode rate +
`prefix_weight` × the leg's own uncached tokens ÷ its prefill rate; for a decode leg the time to pull its KV instead of the
last. An engine whose batch or KV cache is spoken for adds the time until enough of that work has gone. Tokens ahead are
reserved on choice and given back at the leg's end (a prompt's at the end of its prefill), as the router does; the router
does not see steps. Rates are those of the engine's phase model at the workload's mean lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.forecast_engine import Engine, Leg
from controlplane.core.forecast_types import Arrival, Pool, PoolTotals, Settings
from controlplane.core.kvsize import KvSize
from controlplane.core.routing import TIE_S, mix


@dataclass(frozen=True)
class Rates:
    """Tokens/s of one busy engine."""

    prefill: float
    decode: float

    @classmethod
    def of(cls, pool: Pool, settings: Settings, capacity_tokens: int, arrivals: Sequence[Arrival]) -> Rates:
        """At the mean lengths of `arrivals`: whole prompts one after the other, and the largest batch that fits."""
        prompt = max(1, round(sum(each.prompt_tokens for each in arrivals) / len(arrivals)))
        context = prompt + sum(each.output_tokens for each in arrivals) / len(arrivals) / 2
        chunk = min(prompt, settings.max_num_batched_tokens)
        batch = max(1, min(settings.max_num_seqs, int(capacity_tokens // context)))
        return cls(chunk / pool.model.prefill(chunk).seconds, batch / pool.model.decode(batch, context).seconds)


@dataclass(eq=False, slots=True)
class Node:
    """An engine, and what is reserved on it."""

    number: int
    totals: PoolTotals
    """Of its pool."""
    engine: Engine
    rates: Rates
    bytes_per_s: float
    """Of its network link."""
    max_num_seqs: int
    in_flight: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0
    due: int = 0
    """The number of its newest entry among the events; older ones are stale. 0: none."""

    def reserve(self, uncached_tokens: int, decode_tokens: int, kv_tokens: int) -> None:
        self.in_flight += 1
        self.prefill_tokens += uncached_tokens
        self.decode_tokens += decode_tokens
        self.kv_tokens += kv_tokens

    def release(self, decode_tokens: int, kv_tokens: int) -> None:
        self.in_flight -= 1
        self.decode_tokens -= decode_tokens
        self.kv_tokens -= kv_tokens

    def fits(self, leg: Leg) -> bool:
        """Whether it could ever hold the leg's prompt and answer."""
        return leg.prompt_tokens + leg.output_tokens <= self.engine.capacity_tokens

    def seconds_ahead(self, leg: Leg) -> float:
        """Until the work that is reserved now has been done, as far as the leg has to wait for it."""
        seconds = self.prefill_tokens / self.rates.prefill + self.decode_tokens / self.rates.decode
        if self.in_flight >= self.max_num_seqs:
            seconds += self.decode_tokens / self.in_flight / self.rates.decode * self.max_num_seqs
        over = self.kv_tokens + leg.prompt_tokens + leg.output_tokens - self.engine.capacity_tokens
        if over > 0 and self.kv_tokens:
            seconds += over * self.decode_tokens / self.kv_tokens / self.rates.decode
        return seconds


def choose(nodes: Sequence[Node], leg: Leg, now: float, prefix_weight: float, size: KvSize | None = None) -> Node | None:
    """The engine that could serve `leg` soonest; ties go by the session's hash (without one by the request's number). With a
    `size` the leg pulls its KV. None if it fits no engine."""
    fitting = [node for node in nodes if node.fits(leg)]
    if not fitting:
        return None
    scores = []
    for node in fitting:
        tokens = uncached(node, leg, now)
        own = size.bytes(tokens) / node.bytes_per_s if size else prefix_weight * tokens / node.rates.prefill
        scores.append(node.seconds_ahead(leg) + own)
    limit = min(scores) + TIE_S
    tied = [node for node, score in zip(fitting, scores, strict=True) if score <= limit]
    if len(tied) == 1:
        return tied[0]
    session = leg.arrival.session or leg.number + 1
    return max(tied, key=lambda node: mix(session, node.number + 1))


def uncached(node: Node, leg: Leg, now: float) -> int:
    """Prompt tokens of a leg that the engine does not hold now."""
    return leg.prompt_tokens - (node.engine.hit_tokens(leg.keys, leg.prompt_tokens, now) if leg.keys else 0)

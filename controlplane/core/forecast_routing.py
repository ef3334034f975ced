"""Which engines of the forecast take a request: the design's predicted seconds (section 6), as core.scoring has them. Pure.

Seconds until an engine could serve a leg = prompt tokens ahead ÷ its prefill rate + answer tokens ahead ÷ its decode rate +
the leg's own uncached tokens ÷ its prefill rate, weighted as the router does; for a decode leg the time to pull its KV
instead of the last. An engine whose batch or KV cache is spoken for adds the time until enough of that work has gone. Tokens
ahead are reserved on choice and given back at the leg's end (a prompt's at the end of its prefill), as the router does; the
router does not see steps. Rates are those of the engine's phase model at the workload's mean lengths; bandwidth is the
link's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.core.forecast_engine import Engine, Leg
from controlplane.core.forecast_types import Arrival, Pool, PoolTotals, Settings
from controlplane.core.kvsize import KvSize
from controlplane.core.protocol import Mode, Role
from controlplane.core.routing import TIE_S, mix
from controlplane.core.scoring import prefix_score


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

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether it could ever hold such a prompt and answer."""
        return prompt_tokens + output_tokens <= self.engine.capacity_tokens

    def uncached(self, leg: Leg, now: float) -> int:
        """Prompt tokens of a leg that it does not hold now."""
        return leg.prompt_tokens - (self.engine.hit_tokens(leg.keys, leg.prompt_tokens, now) if leg.keys else 0)

    def seconds_ahead(self, tokens: int) -> float:
        """Until the work that is reserved now has been done, as far as a request of `tokens` has to wait for it."""
        seconds = self.prefill_tokens / self.rates.prefill + self.decode_tokens / self.rates.decode
        if self.in_flight >= self.max_num_seqs:
            seconds += self.decode_tokens / self.in_flight / self.rates.decode * self.max_num_seqs
        over = self.kv_tokens + tokens - self.engine.capacity_tokens
        if over > 0 and self.kv_tokens:
            seconds += over * self.decode_tokens / self.kv_tokens / self.rates.decode
        return seconds


class Choice(NamedTuple):
    """`ahead_s` + `own_s`: until the engine could serve the leg."""

    node: Node
    ahead_s: float
    own_s: float


class Router:
    """Chooses among all engines of a mode. `kv_size`: what a prompt's KV is to a transfer."""

    def __init__(self, nodes: Sequence[Node], settings: Settings, mode: Mode, kv_size: KvSize) -> None:
        def role(name: Role) -> list[Node]:
            return [node for node in nodes if node.totals.pool.role == name]

        self._settings = settings
        self._mode = mode
        self._kv_size = kv_size
        self._prefill = role("prefill")
        self._last_role: Role = "mixed" if mode == "monolithic" else "decode"
        self._last = role(self._last_role)
        """The engines that give the answer."""

    def leave(self, node: Node) -> None:
        """It gets no new legs; those it has go on."""
        for pool in (self._prefill, self._last):
            if node in pool:
                pool.remove(node)

    def join(self, node: Node, role: Role) -> None:
        """It gets legs of `role` (the mode's) from now on."""
        (self._prefill if role == "prefill" else self._last).append(node)

    def refusal(self, leg: Leg) -> str | None:
        """Why no engine could ever serve a whole request."""
        longest = self._settings.max_model_len
        if longest is not None and leg.arrival.prompt_tokens + leg.output_tokens > longest:
            return f"longer than max_model_len ({longest} tokens)"
        if not any(node.fits(leg.prompt_tokens, leg.output_tokens) for node in self._last):
            return f"prompt and answer do not fit the KV cache of any {self._last_role} engine"
        if self._mode != "monolithic" and not any(node.fits(leg.prompt_tokens, 1) for node in self._prefill):
            return "the prompt does not fit the KV cache of any prefill engine"
        return None

    def splits(self, leg: Leg, now: float) -> bool:
        """Whether a request goes through a prefill engine. Conditional (as `core.routing.conditional_reason`): it must reach
        both thresholds and cost no more waiting, summed over all requests: its own until the first token, and that of the
        answers which a prefill of its uncached tokens would hold up on the engine that runs them."""
        if self._mode != "conditional":
            return self._mode == "disaggregated"
        limits, local = self._settings.conditional, self.whole(leg, now)
        tokens = local.node.uncached(leg, now)
        if tokens < limits.min_uncached_tokens or tokens < limits.min_uncached_ratio * leg.arrival.prompt_tokens:
            return False
        prefill, decode = self.prefill(leg, now), self.decode(leg, now)
        remote_s = prefill.ahead_s + prefill.own_s + decode.ahead_s + decode.own_s
        harm_s = local.own_s * local.node.in_flight
        return local.ahead_s + local.own_s + harm_s >= remote_s - TIE_S

    def whole(self, leg: Leg, now: float) -> Choice:
        return self._choose(self._last, leg, leg.output_tokens, now, pulls=False)

    def prefill(self, leg: Leg, now: float) -> Choice:
        return self._choose(self._prefill, leg, 1, now, pulls=False)

    def decode(self, leg: Leg, now: float) -> Choice:
        return self._choose(self._last, leg, leg.output_tokens, now, pulls=True)

    def _choose(self, nodes: Sequence[Node], leg: Leg, output_tokens: int, now: float, pulls: bool) -> Choice:
        """The engine with the lowest score; ties go by the session's hash (without one by the request's number). One of them
        must fit the leg (`refusal`)."""
        choices: list[Choice] = []
        scores: list[float] = []
        for node in nodes:
            if not node.fits(leg.prompt_tokens, output_tokens):
                continue
            tokens = node.uncached(leg, now)
            own_s = self._kv_size.bytes(tokens) / node.bytes_per_s if pulls else tokens / node.rates.prefill
            ahead_s = node.seconds_ahead(leg.prompt_tokens + output_tokens)
            choices.append(Choice(node, ahead_s, own_s))
            scores.append(ahead_s + own_s if pulls else prefix_score(ahead_s, own_s))
        limit = min(scores) + TIE_S
        tied = [choice for choice, score in zip(choices, scores, strict=True) if score <= limit]
        if len(tied) == 1:
            return tied[0]
        session = leg.arrival.session or leg.number + 1
        return max(tied, key=lambda choice: mix(session, choice.node.number + 1))

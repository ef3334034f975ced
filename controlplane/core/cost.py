"""What GPUs cost: by pool, model and team, per million tokens, idle, stranded, and on other GPUs. Pure; US dollars, hours.

Every GPU-hour of the fleet is counted once. Of a pool's time *busy* is the sum of its GPUs' busy shares (effective
GPU-hours), *idle* is ready with no request in it, *stranded* is paid for without being able to serve: its engine starts,
drains or is broken, or the GPU is in no pool at all. The rest is time in which requests ran that did not fill the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.core.counts import some
from controlplane.core.gpus import GPUS
from controlplane.core.protocol import Role

Terms = Literal["owned", "hourly"]
HOURS_PER_MONTH = 730
MOST_PER_HOUR = 1e6
MILLION = 1e6


class PriceRefused(ValueError):
    """A price that cannot be, or is missing; the message names the remedy."""


@dataclass(frozen=True)
class Price:
    """US$ for one hour of one GPU: rented (`hourly`), or what owning it costs an hour (`owned`: purchase, power and hosting
    over its life). `guess`: nobody gave it, it is the GPU table's list price."""

    per_hour: float
    terms: Terms = "hourly"
    guess: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.per_hour <= MOST_PER_HOUR:
            raise PriceRefused(f"a GPU-hour must cost 0 to {MOST_PER_HOUR:,.0f} US$, got {self.per_hour!r:.40}")


@dataclass(frozen=True)
class PriceBook:
    """Prices by kind of GPU; a kind without one gets the table's list price, marked as a guess."""

    prices: Mapping[str, Price] = field(default_factory=dict)

    def of(self, kind: str) -> Price | None:
        """None: neither given nor in the table."""
        if kind in self.prices:
            return self.prices[kind]
        return Price(GPUS[kind].price_per_hour, guess=True) if kind in GPUS else None

    def known(self) -> dict[str, Price]:
        """Of every kind that has one."""
        return {kind: price for kind in (*GPUS, *self.prices) if (price := self.of(kind))}

    def per_hour(self) -> dict[str, float]:
        """US$ of every kind that is known."""
        return {kind: price.per_hour for kind, price in self.known().items()}


@dataclass(frozen=True)
class Use:
    """What the GPUs of one kind did for one pool in a span, in hours of single GPUs. In no pool: model and role are ""."""

    model: str
    role: Role | Literal[""]
    kind: str
    gpu_hours: float
    busy_hours: float | None = None
    """None: the GPUs did not tell."""
    idle_hours: float = 0.0
    stranded_hours: float = 0.0
    unknown_hours: float = 0.0
    """At work, but the GPUs did not tell how busy they were."""
    prefill_share: float | None = None
    """Of a mixed pool's working time, spent on prompts. None: not known, its cost is then not split by phase."""


@dataclass(frozen=True)
class Tokens:
    """What a team (or one of its keys) had a model serve in the span. `cached`: of the prompt tokens, found in a cache."""

    model: str
    team: str
    prompt: int
    output: int
    cached: int = 0
    requests: int = 0
    key: str = ""


@dataclass(frozen=True)
class PoolCost:
    """Costs are None where the kind has no price."""

    use: Use
    cost: float | None
    idle_cost: float | None
    stranded_cost: float | None
    guess: bool


@dataclass(frozen=True)
class ModelCost:
    """`prefill_cost` is what prompts cost, `decode_cost` what answers cost, mixed pools' shares included; both None where a
    pool's time could not be split. Without a price all are None. `gaps` says why a figure is missing."""

    model: str
    cost: float | None
    prefill_cost: float | None
    decode_cost: float | None
    idle_cost: float | None
    stranded_cost: float | None
    prompt_tokens: int
    output_tokens: int
    requests: int
    per_million_input: float | None
    """US$ of prompts per million prompt tokens, cached ones included."""
    per_million_output: float | None
    """US$ of answers per million output tokens."""
    per_million_tokens: float | None
    """All cost per million output tokens: the figure that forecasts give."""
    gaps: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """What one team's (or key's) traffic of one model costs: prompts by their tokens that had to be computed, answers by
    theirs; by all of both where the phases cannot be told apart. The shares of a model add up to its cost."""

    tokens: Tokens
    cost: float | None


@dataclass(frozen=True)
class Bill:
    """`unassigned`: cost of GPUs in no pool. `total` leaves out kinds without a price, which `gaps` names."""

    pools: tuple[PoolCost, ...]
    models: tuple[ModelCost, ...]
    shares: tuple[Share, ...]
    unassigned: float
    total: float
    guess: bool
    gaps: tuple[str, ...]


@dataclass(frozen=True)
class WhatIf:
    """The same traffic on other GPUs. Savings are negative where it costs more."""

    now_per_hour: float
    then_per_hour: float
    saved_per_hour: float
    saved_per_month: float
    per_million_tokens_now: float | None
    per_million_tokens_then: float | None
    sentence: str


def bill(uses: Iterable[Use], tokens: Iterable[Tokens], book: PriceBook) -> Bill:
    """All costs of a span. A model that served without GPUs, or held GPUs and served nothing, is in it too."""
    pools, served = [_pool(use, book) for use in uses], list(tokens)
    names = dict.fromkeys([*(pool.use.model for pool in pools if pool.use.model), *(each.model for each in served)])
    models = {
        name: _model(
            name, [pool for pool in pools if pool.use.model == name], [each for each in served if each.model == name]
        )
        for name in names
    }
    unpriced = sorted({pool.use.kind for pool in pools if pool.cost is None and pool.use.gpu_hours > 0})
    return Bill(
        pools=tuple(pools),
        models=tuple(models.values()),
        shares=tuple(Share(each, _share(each, models[each.model], served)) for each in served),
        unassigned=_sum(pool.cost for pool in pools if not pool.use.model),
        total=_sum(pool.cost for pool in pools),
        guess=any(pool.guess for pool in pools if pool.use.gpu_hours > 0),
        gaps=tuple(f"GPU kind {kind} has no price: give it one in the price book" for kind in unpriced),
    )


def what_if(
    now: Mapping[str, int], then: Mapping[str, int], book: PriceBook, tokens_per_second: float | None = None
) -> WhatIf:
    """Other numbers of GPUs by kind for the same `tokens_per_second` output tokens. Raises PriceRefused for a kind without a
    price."""
    before, after = _per_hour(now, book), _per_hour(then, book)
    saved = before - after
    tokens = round(tokens_per_second * 3600) if tokens_per_second else 0
    return WhatIf(
        now_per_hour=before,
        then_per_hour=after,
        saved_per_hour=saved,
        saved_per_month=saved * HOURS_PER_MONTH,
        per_million_tokens_now=_per_million(before, tokens),
        per_million_tokens_then=_per_million(after, tokens if sum(then.values()) else 0),  # no GPUs make no tokens
        sentence=_told(sum(now.values()), sum(then.values()), before, saved),
    )


def _told(now: int, then: int, before: float, saved: float) -> str:
    counts = f"{now:,} → {some(then, 'GPU')}"
    if not saved:
        return f"{counts} costs the same, {before:,.2f} US$ an hour."
    month = f"{abs(saved) * HOURS_PER_MONTH:,.0f} US$ a month of {HOURS_PER_MONTH} hours"
    return f"{counts} {'saves' if saved > 0 else 'costs another'} {abs(saved):,.2f} US$ an hour, {month}."


def _pool(use: Use, book: PriceBook) -> PoolCost:
    price = book.of(use.kind)
    if price is None:
        return PoolCost(use, None, None, None, False)
    each = price.per_hour
    return PoolCost(use, use.gpu_hours * each, use.idle_hours * each, use.stranded_hours * each, price.guess)


def _model(name: str, pools: list[PoolCost], served: list[Tokens]) -> ModelCost:
    gaps = [f"GPU kind {pool.use.kind} has no price" for pool in pools if pool.cost is None and pool.use.gpu_hours > 0]
    if any(pool.use.role == "mixed" and pool.use.prefill_share is None and pool.use.gpu_hours > 0 for pool in pools):
        gaps.append("it is not known how much of the mixed pool's time went to prompts")
    priced = not any(pool.cost is None for pool in pools)
    cost = _sum(pool.cost for pool in pools) if priced else None
    prefill, decode = (None, None) if gaps else (_phase(pools, "prefill"), _phase(pools, "decode"))
    prompt, output = sum(each.prompt for each in served), sum(each.output for each in served)
    return ModelCost(
        model=name,
        cost=cost,
        prefill_cost=prefill,
        decode_cost=decode,
        idle_cost=_sum(pool.idle_cost for pool in pools) if priced else None,
        stranded_cost=_sum(pool.stranded_cost for pool in pools) if priced else None,
        prompt_tokens=prompt,
        output_tokens=output,
        requests=sum(each.requests for each in served),
        per_million_input=_per_million(prefill, prompt),
        per_million_output=_per_million(decode, output),
        per_million_tokens=_per_million(cost, output),
        gaps=tuple(dict.fromkeys([*gaps, *([] if prompt or output else ["nothing was served"])])),
    )


def _phase(pools: Iterable[PoolCost], phase: Role) -> float:
    def part(pool: PoolCost) -> float:
        if pool.use.role != "mixed":
            return 1.0 if pool.use.role == phase else 0.0
        share = pool.use.prefill_share or 0.0
        return share if phase == "prefill" else 1.0 - share

    return math.fsum((pool.cost or 0.0) * part(pool) for pool in pools)


def _share(of: Tokens, model: ModelCost, served: list[Tokens]) -> float | None:
    same = [each for each in served if each.model == of.model]
    if model.cost is None:
        return None
    if model.prefill_cost is None or model.decode_cost is None:
        return model.cost * _part(of, same, lambda each: each.prompt + each.output)
    prompts = model.prefill_cost * _part(of, same, lambda each: each.prompt - each.cached)
    return prompts + model.decode_cost * _part(of, same, lambda each: each.output)


def _part(of: Tokens, same: list[Tokens], weight: Callable[[Tokens], int]) -> float:
    """Of all; equal parts where all weigh nothing."""
    whole = sum(map(weight, same))
    return weight(of) / whole if whole else 1 / len(same)


def _per_million(cost: float | None, tokens: int) -> float | None:
    return cost / tokens * MILLION if cost is not None and tokens else None


def _per_hour(gpus: Mapping[str, int], book: PriceBook) -> float:
    total = 0.0
    for kind, count in gpus.items():
        price = book.of(kind)
        if price is None:
            raise PriceRefused(f"GPU kind {kind[:60]!r} has no price: give it one in the price book")
        total += price.per_hour * count
    return total


def _sum(costs: Iterable[float | None]) -> float:
    return math.fsum(cost for cost in costs if cost is not None)

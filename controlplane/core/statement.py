"""What a span of time cost, to the cent: by model, team, key, day and pool, all of which add up to the same total. Pure.

The total is rounded once. Every part of it is whole cents, dealt out by the largest remainder, so that lines of a table add
up to what stands below them, whichever way they are grouped. A cell differs from its unrounded value by less than a cent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.cost import Bill, PoolCost, PriceBook, Tokens, Use, bill

CENTS = 100
HOUR_S = 3600.0


@dataclass(frozen=True)
class Segment:
    """Hours of one day in which prices did not change. `day` is its date, ISO 8601."""

    day: str
    book: PriceBook
    uses: tuple[Use, ...]
    tokens: tuple[Tokens, ...]


@dataclass(frozen=True)
class Line:
    """What one key's traffic of one model cost on a day. `served` False: the model served nothing that day, so that its GPUs
    are nobody's (team and key are ""); model "" too: GPUs in no pool. `cents` None: its GPUs have no price."""

    day: str
    model: str
    team: str
    key: str
    served: bool
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    cents: int | None


@dataclass(frozen=True)
class PoolLine:
    """A pool's GPUs of one kind, by what they did: hours, and cents that add up to `cents`. `underused`: requests ran and
    did not fill the GPU. `unknown`: at work, but its activity was not told. In no pool: model and role are ""."""

    model: str
    role: str
    kind: str
    gpu_hours: float
    busy_hours: float
    underused_hours: float
    idle_hours: float
    stranded_hours: float
    unknown_hours: float
    cents: int | None
    busy_cents: int | None
    underused_cents: int | None
    idle_cents: int | None
    stranded_cents: int | None
    unknown_cents: int | None
    guess: bool
    unpriced: bool
    """This kind has no price."""


@dataclass(frozen=True)
class ModelLine:
    """`prefill_cents`, `decode_cents` and `mixed_cents` are of the pools of that role and add up to `cents`.
    `per_million_input` and `per_million_output` are US$, None where mixed pools served,
    whose time is not told apart, and where there was no such pool."""

    model: str
    cents: int | None
    prefill_cents: int | None
    decode_cents: int | None
    mixed_cents: int | None
    idle_cents: int | None
    stranded_cents: int | None
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    per_million_input: float | None
    per_million_output: float | None
    per_million_tokens: float | None
    """US$ of all its GPUs per million output tokens."""
    gaps: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """`unassigned_cents`: GPUs in no pool. `guess`: a price that nobody gave is among those used. `total_cents` leaves out
    what has no price, which `gaps` names."""

    total_cents: int
    unassigned_cents: int
    models: tuple[ModelLine, ...]
    pools: tuple[PoolLine, ...]
    lines: tuple[Line, ...]
    guess: bool
    gaps: tuple[str, ...]


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole parts as near to `weights` (0 or more) as whole parts can be; they add up to it. Without any weight
    the first gets all."""
    if not weights:
        return []
    whole = math.fsum(weights)
    if not whole:
        return [total, *[0] * (len(weights) - 1)]
    exact = [total * (weight / whole) for weight in weights]
    parts = [math.floor(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda place: (parts[place] - exact[place], place))
    missing = total - sum(parts)
    for place in order[:missing] if missing >= 0 else order[missing:]:  # below 0: a product was rounded up to a whole
        parts[place] += 1 if missing > 0 else -1
    return parts


def statement(segments: Iterable[Segment]) -> Statement:
    """All costs of the segments together."""
    billed = [(segment.day, bill(segment.uses, segment.tokens, segment.book)) for segment in segments]
    pools, lines = _pools(billed), _lines(billed)
    names = list(dict.fromkeys(model for model, *_ in (*pools, *((line.model,) for line in lines))))
    unpriced = {model for (model, *_), pool in pools.items() if pool.dollars is None}
    dollars = {
        name: math.fsum(pool.dollars or 0.0 for key, pool in pools.items() if key[0] == name)
        for name in names
        if name not in unpriced
    }
    total = round(math.fsum(dollars.values()) * CENTS)
    cents = dict(zip(dollars, apportion(total, list(dollars.values())), strict=True))
    pool_lines = tuple(line for name in names for line in _pool_lines(name, cents.get(name), pools))
    all_lines = tuple(line for name in names for line in _in_cents(name, cents.get(name), lines))
    return Statement(
        total_cents=total,
        unassigned_cents=cents.get("", 0),
        models=tuple(_model(name, cents.get(name), pool_lines, all_lines) for name in names if name),
        pools=pool_lines,
        lines=tuple(sorted(all_lines, key=lambda line: (line.day, line.model, line.team, line.key))),
        guess=any(found.guess for _, found in billed),
        gaps=tuple(dict.fromkeys(gap for _, found in billed for gap in found.gaps)),
    )


# --- Pools


@dataclass
class _Pool:
    hours: list[float]
    """busy, underused, idle, stranded, unknown."""
    dollars: float | None = 0.0
    guess: bool = False

    def add(self, cost: PoolCost) -> None:
        use = cost.use
        known = use.gpu_hours - use.idle_hours - use.stranded_hours
        busy = use.busy_hours or 0.0
        parts = (busy, max(known - busy - use.unknown_hours, 0.0), use.idle_hours, use.stranded_hours, use.unknown_hours)
        self.hours = [have + more for have, more in zip(self.hours, parts, strict=True)]
        if use.gpu_hours:
            self.dollars = None if self.dollars is None or cost.cost is None else self.dollars + cost.cost
            self.guess = self.guess or cost.guess


_PoolKey = tuple[str, str, str]


def _pools(billed: Iterable[tuple[str, Bill]]) -> dict[_PoolKey, _Pool]:
    found: defaultdict[_PoolKey, _Pool] = defaultdict(lambda: _Pool([0.0] * 5))
    for _, each in billed:
        for cost in each.pools:
            found[cost.use.model, cost.use.role, cost.use.kind].add(cost)
    return dict(sorted(found.items()))


def _pool_lines(name: str, cents: int | None, pools: dict[_PoolKey, _Pool]) -> Iterable[PoolLine]:
    mine = {key: pool for key, pool in pools.items() if key[0] == name}
    parts: Sequence[int | None] = [None] * (5 * len(mine))
    if cents is not None:
        parts = apportion(cents, [weight for pool in mine.values() for weight in _by_hours(pool)])
    for place, ((_, role, kind), pool) in enumerate(mine.items()):
        own = parts[5 * place : 5 * place + 5]
        (busy_h, underused_h, idle_h, stranded_h, unknown_h), (busy, underused, idle, stranded, unknown) = pool.hours, own
        yield PoolLine(
            model=name,
            role=role,
            kind=kind,
            gpu_hours=math.fsum(pool.hours),
            busy_hours=busy_h,
            underused_hours=underused_h,
            idle_hours=idle_h,
            stranded_hours=stranded_h,
            unknown_hours=unknown_h,
            cents=None if cents is None else sum(part or 0 for part in own),
            busy_cents=busy,
            underused_cents=underused,
            idle_cents=idle,
            stranded_cents=stranded,
            unknown_cents=unknown,
            guess=pool.guess,
            unpriced=pool.dollars is None,
        )


def _by_hours(pool: _Pool) -> list[float]:
    whole = math.fsum(pool.hours)
    return [(pool.dollars or 0.0) * hours / whole if whole else 0.0 for hours in pool.hours]


# --- Traffic


@dataclass
class _Weighed:
    day: str
    model: str
    team: str
    key: str
    served: bool
    dollars: float = 0.0
    requests: int = 0
    prompt: int = 0
    output: int = 0
    cached: int = 0

    def add(self, tokens: Tokens | None, cost: float | None) -> None:
        self.dollars += cost or 0.0
        if tokens is not None:
            self.requests += tokens.requests
            self.prompt += tokens.prompt
            self.output += tokens.output
            self.cached += tokens.cached


def _lines(billed: Iterable[tuple[str, Bill]]) -> list[_Weighed]:
    found: dict[tuple[str, str, str, str, bool], _Weighed] = {}
    for day, each in billed:
        for share in each.shares:
            of = share.tokens
            key = (day, of.model, of.team, of.key, True)
            found.setdefault(key, _Weighed(*key)).add(of, share.cost)
        served = {share.tokens.model for share in each.shares}
        spare = [(model.model, model.cost) for model in each.models if model.model not in served]
        for model, cost in (*spare, *([("", each.unassigned)] if each.unassigned else [])):
            key = (day, model, "", "", False)
            found.setdefault(key, _Weighed(*key)).add(None, cost)
    return list(found.values())


def _in_cents(name: str, cents: int | None, lines: Sequence[_Weighed]) -> Iterable[Line]:
    mine = [line for line in lines if line.model == name]
    parts: Sequence[int | None] = [None] * len(mine)
    if cents is not None:
        parts = apportion(cents, [line.dollars for line in mine])
    for line, part in zip(mine, parts, strict=True):
        of = (line.day, line.model, line.team, line.key, line.served, line.requests)
        yield Line(*of, line.prompt, line.output, line.cached, part)


# --- Models


def _model(name: str, cents: int | None, pools: Sequence[PoolLine], lines: Sequence[Line]) -> ModelLine:
    mine, traffic = [pool for pool in pools if pool.model == name], [line for line in lines if line.model == name]

    def of_role(role: str) -> int | None:
        return None if cents is None else sum(pool.cents or 0 for pool in mine if pool.role == role)

    def of_state(state: str) -> int | None:
        return None if cents is None else sum(getattr(pool, state) or 0 for pool in mine)

    prefill, decode, mixed = (of_role(role) for role in ("prefill", "decode", "mixed"))
    prompt, output = sum(line.prompt_tokens for line in traffic), sum(line.output_tokens for line in traffic)
    return ModelLine(
        model=name,
        cents=cents,
        prefill_cents=prefill,
        decode_cents=decode,
        mixed_cents=mixed,
        idle_cents=of_state("idle_cents"),
        stranded_cents=of_state("stranded_cents"),
        requests=sum(line.requests for line in traffic),
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=sum(line.cached_tokens for line in traffic),
        per_million_input=None if mixed or not prefill else per_million(prefill, prompt),
        per_million_output=None if mixed or not decode else per_million(decode, output),
        per_million_tokens=per_million(cents, output),
        gaps=tuple(_gaps(mine, cents, mixed, prompt + output)),
    )


def per_million(cents: int | None, tokens: int) -> float | None:
    """US$ per million tokens; None: not known, or there were none."""
    return cents / CENTS / tokens * 1e6 if cents is not None and tokens else None


def _gaps(pools: Sequence[PoolLine], cents: int | None, mixed: int | None, tokens: int) -> Iterable[str]:
    if cents is None:
        for kind in sorted({pool.kind for pool in pools if pool.unpriced}):
            yield f"GPU kind {kind or 'unknown'} has no price: give it one in the price book"
    if mixed:
        yield "it is not known how much of the mixed pool's time went to prompts"
    if not tokens:
        yield "nothing was served"
    if any(pool.unknown_hours for pool in pools):
        yield "some GPUs did not tell how busy they were"

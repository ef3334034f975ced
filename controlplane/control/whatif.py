"""What a model's GPUs cost an hour now, and what they would at another split, or as the planner proposes, for the same
traffic. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.control.models import Proposal, ProposalState
from controlplane.control.planning.selectors import all_proposals
from controlplane.control.refused import Refused
from controlplane.core.cost import PriceBook, PriceRefused, WhatIf, what_if
from controlplane.fleet import models
from controlplane.telemetry.queries.models import model_figures
from controlplane.telemetry.queries.prices import books
from controlplane.telemetry.queries.windows import Window

WINDOW_S = 3600


@dataclass(frozen=True)
class SplitCost:
    """GPUs by kind. `cost.per_million_tokens_…` are of the last hour's output tokens, None where there were none. `gaps`
    says what is a guess or not known."""

    model: str
    now: Mapping[str, int]
    then: Mapping[str, int]
    cost: WhatIf
    gaps: tuple[str, ...]


def at_split(model: models.Model, engines: Mapping[str, int], now: float) -> SplitCost:
    """With so many engines by role; roles that are left out stay as they are. New engines are taken to be of the kind that
    the pool has most of, else the model. Raises django.db.Error; Refused for a kind that is not known or has no price."""
    held = _held(model)
    present: Counter[str] = sum(held.values(), Counter())
    then: Counter[str] = Counter()
    for role in models.Role.values:
        if role in engines:
            then += _with(model, role, engines[role], held.get(role, Counter()), present)
        else:
            then += held.get(role, Counter())
    return _priced(model, present, then, now)


@dataclass(frozen=True)
class ProposalCost:
    """Of an open proposal, `proposal` its number: its model's GPUs as they are and as proposed. A trade is priced for the
    model that is helped; the giver's GPUs stay paid for."""

    model: str
    proposal: int
    title: str
    now: Mapping[str, int]
    then: Mapping[str, int]
    """GPUs by kind."""
    cost: WhatIf | None = None
    """None where a kind has no price: `why_not`."""
    gaps: tuple[str, ...] = ()
    why_not: str = ""


def at_proposals(now: float, name: str = "") -> list[ProposalCost]:
    """What every open proposal, or only that for the model `name`, would make of the cost of the same traffic. Raises
    django.db.Error."""
    open_ones = all_proposals().filter(state=ProposalState.OPEN).order_by("model__name")
    return [_at_proposal(row, now) for row in (open_ones.filter(model__name=name) if name else open_ones)]


def _at_proposal(row: Proposal, now: float) -> ProposalCost:
    told = (row.model.name, row.pk, row.title, _by_kind(row.before), _by_kind(row.pools))
    try:
        split = _priced(row.model, told[3], told[4], now)
    except Refused as refused:
        return ProposalCost(*told, why_not=str(refused))
    return ProposalCost(*told, split.cost, split.gaps)


def _by_kind(pools: Iterable[Mapping[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for pool in pools:
        found[pool["gpu"]] += pool["engines"] * pool["tensor_parallel"]
    return found


def _priced(model: models.Model, present: Mapping[str, int], then: Mapping[str, int], now: float) -> SplitCost:
    """Raises Refused for a kind without a price."""
    book = books().at(now)
    rate = model_figures(model.name, Window.last(WINDOW_S, now)).output_tokens_per_s.value
    try:
        cost = what_if(present, then, book, rate)
    except PriceRefused as error:
        raise Refused("invalid", str(error)) from error
    return SplitCost(model.name, dict(present), dict(then), cost, tuple(_gaps(book, {**present, **then}, rate)))


def _held(model: models.Model) -> dict[str, Counter[str]]:
    """GPUs by role and kind that its engines hold."""
    found: dict[str, Counter[str]] = {}
    rows = models.Reservation.objects.filter(rank__engine__model=model, rank__engine__wanted=True)
    for role, kind in rows.values_list("rank__engine__role", "gpu__kind"):
        found.setdefault(role, Counter())[kind] += 1
    return found


def _with(model: models.Model, role: str, engines: int, own: Counter[str], present: Counter[str]) -> Counter[str]:
    if not engines:
        return Counter()
    pool = model.pools.filter(role=role, arm=models.MAIN).first() or model.pools.filter(arm=models.MAIN).first()
    if pool is None:
        raise Refused("invalid", f"{model.name} has no pool: it is not known how many GPUs an engine takes")
    kinds = (own or present).most_common(1)
    kind = kinds[0][0] if kinds else next(iter(pool.gpu_kinds), "")
    if not kind:
        raise Refused(
            "invalid", f"{model.name} holds no GPU and its {role} pool names no kind: it is not known what it would get"
        )
    return Counter({kind: engines * pool.gpus_per_engine})


def _gaps(book: PriceBook, kinds: Mapping[str, int], rate: float | None) -> list[str]:
    guessed = sorted(kind for kind in kinds if (price := book.of(kind)) and price.guess)
    found = [f"{kind} is at its list price, a guess: set its price in the price book" for kind in guessed]
    return found if rate else [*found, "no output tokens in the last hour: nothing is known per token"]

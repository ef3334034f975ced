"""What another split or mode of a model would do under its traffic of late: simulated, beside the requests that ask.

`Outlook.of` answers at once with what is known and has the rest simulated by a process of its own, one at a time; the same
question is asked again a moment later. Nothing here changes anything.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from controlplane.core.gpus import GPUS
from controlplane.core.layout import WORD_OF_MODE
from controlplane.core.protocol import ROLES_OF_MODE, Mode
from controlplane.core.table import DEFAULT_MAX_NUM_SEQS
from controlplane.fleet import models
from controlplane.physics.asked import MAX_PRICE
from controlplane.physics.children import answers
from controlplane.physics.splitforecasts import Question
from controlplane.telemetry.queries.prices import books
from controlplane.telemetry.recent import Traffic, recent_traffic

SPAN_S = 1800
KEPT_S = 300.0
"""A forecast is asked for again after this long: traffic changes."""
KEPT = 512
BATCH = 4
"""Layouts of one process."""
STEP = 1.05
MODULE = "controlplane.physics.splitforecasts"
WITHIN_S = 90.0
BASIS_S = 120.0
ASKED_S = 15.0
MAX_WAITING = 64


@dataclass(frozen=True)
class Basis:
    """What the forecasts of a model are made from, rounded so that they need not be made anew for every request."""

    question: Question
    kinds: Mapping[str, tuple[int, str]]
    """By role: GPUs per engine, and the kind of GPU most of them have."""
    traffic: Traffic


def basis_of(model: models.Model, now: float) -> Basis | str:
    """Why there can be no forecast, if there is no basis."""
    traffic = recent_traffic(model.name, now, SPAN_S)
    if traffic is None:
        return f"no request of {model.name} ended well in {SPAN_S // 60} minutes: there is no traffic to forecast for"
    if model.pools.filter(pipeline_parallel__gt=1).exists():
        return f"engines of {model.name} have several pipeline stages, which forecasts do not know"
    kinds = kinds_of(model)
    if not kinds:
        return f"no engine of {model.name} has a GPU: there is no hardware to forecast for"
    prompt, cached = _stepped(traffic.prompt_tokens), _stepped(traffic.cached_tokens)
    question = Question(
        model=model.name,
        config=model.config,
        layouts=(),
        rate=_stepped(traffic.rate),
        prompt_tokens=max(1, round(prompt)),
        output_tokens=max(1, round(_stepped(traffic.output_tokens))),
        length_cv=min(3.0, round(traffic.length_cv, 1)),
        prefix_cached=min(round(cached), max(0, round(prompt) - 1)),
        slo_ttft_ms=model.slo_ttft_ms,
        slo_itl_ms=model.slo_itl_ms,
        max_num_seqs=model.engine_args.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS),
        prices=_prices({kind for _, kind in kinds.values()}, now),
    )
    return Basis(question, kinds, traffic)


def _prices(kinds: Set[str], now: float) -> dict[str, float]:
    """Those that the price book gives; forecasts take none that is 0 or beyond their limit."""
    found = {kind: books().at(now).of(kind) for kind in sorted(kinds & GPUS.keys())}
    return {
        kind: price.per_hour
        for kind, price in found.items()
        if price and not price.guess and 0 < price.per_hour <= MAX_PRICE
    }


def layout_text(mode: Mode, sizes: Mapping[str, int], kinds: Mapping[str, tuple[int, str]]) -> str:
    """As core.layout reads it. A role without hardware of its own gets what another has."""
    other = next(iter(kinds.values()))
    pools = [
        f"{sizes.get(role, 0)}xTP{degree}@{kind}"
        for role in ROLES_OF_MODE[mode]
        for degree, kind in [kinds.get(role, other)]
    ]
    return f"{WORD_OF_MODE[mode]}:{'+'.join(pools)}"


def kinds_of(model: models.Model) -> dict[str, tuple[int, str]]:
    """By role: GPUs per engine, and the kind of GPU that most of its engines have."""
    seen: dict[str, Counter[tuple[int, str]]] = {}
    rows = models.Reservation.objects.filter(rank__engine__model=model, rank__engine__wanted=True)
    for role, degree, kind in rows.values_list("rank__engine__role", "rank__engine__tensor_parallel", "gpu__kind"):
        seen.setdefault(role, Counter())[(degree, kind)] += 1
    return {role: found.most_common(1)[0][0] for role, found in seen.items()}


def _stepped(value: float) -> float:
    """On a scale of 5% steps, to two digits: figures that hardly move ask the same question."""
    if value <= 0:
        return 0.0
    return float(f"{STEP ** round(math.log(value) / math.log(STEP)):.2g}")


class Outlook:
    """Forecasts by question; thread-safe. A thread works while something waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()
        self._waiting: OrderedDict[str, tuple[Question, float]] = OrderedDict()
        """With when it was last asked: nobody waits for what is asked no more."""
        self._bases: OrderedDict[tuple[int, int], tuple[float, Basis | str]] = OrderedDict()
        """By model and its version."""
        self._thread: threading.Thread | None = None

    def basis(self, model: models.Model) -> Basis | str:
        """`basis_of` the model, the same for BASIS_S: a page that asks again must mean the same question."""
        key, now = (model.pk, model.version), time.monotonic()
        with self._lock:
            at, known = self._bases.get(key, (0.0, ""))
        if isinstance(known, str) or now - at > BASIS_S:
            known = basis_of(model, time.time())
            with self._lock:
                self._bases[key] = (now, known)
                while len(self._bases) > KEPT:
                    self._bases.popitem(last=False)
        return known

    def of(self, question: Question, layouts: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """By layout: {"figures": …} or {"refused": "why"}; None while it is being made."""
        now = time.monotonic()
        found: dict[str, dict[str, Any] | None] = {}
        with self._lock:
            for layout in dict.fromkeys(layouts):
                one = replace(question, layouts=(layout,))
                at, answer = self._known.get(one.to_json(), (0.0, None))
                found[layout] = answer if now - at < KEPT_S else None
                if found[layout] is None and (one.to_json() in self._waiting or len(self._waiting) < MAX_WAITING):
                    self._waiting[one.to_json()] = (one, now)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="outlook", daemon=True)
                self._thread.start()
        return found

    def _work(self) -> None:
        while batch := self._next():
            by_layout = {one.layouts[0]: one for one in batch}
            question = replace(batch[0], layouts=tuple(by_layout))
            for layout, answer in answers(MODULE, question.to_json(), WITHIN_S):
                self._learn(by_layout.pop(layout), answer)
            for one in by_layout.values():
                self._learn(one, {"refused": "the simulation failed or took too long; the web process's log has the reason"})

    def _learn(self, question: Question, answer: dict[str, Any]) -> None:
        key = question.to_json()
        with self._lock:
            self._known[key] = (time.monotonic(), answer)
            self._waiting.pop(key, None)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)

    def _next(self) -> list[Question]:
        """The oldest questions that differ in nothing but their layout; the thread ends with none."""
        with self._lock:
            now = time.monotonic()
            for key in [key for key, (_, asked) in self._waiting.items() if now - asked > ASKED_S]:
                del self._waiting[key]
            waiting = [one for one, _ in self._waiting.values()]
            if not waiting:
                self._thread = None
                return []
            return [one for one in waiting if replace(one, layouts=()) == replace(waiting[0], layouts=())][:BATCH]


@cache
def outlook() -> Outlook:
    """This process's."""
    return Outlook()

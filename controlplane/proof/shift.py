"""A load whose mix shifts, in real time, on a fleet that the planner may change by itself: what it did, and what came."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.models import PlannerHold, Proposal
from controlplane.control.planning.history import PLANNER
from controlplane.core.observed_load import MINUTE_S
from controlplane.fleet import models
from controlplane.proof.arrivals import Arrivals
from controlplane.proof.display import Display
from controlplane.proof.fleet import Fleet
from controlplane.proof.questions import simulated_questions
from controlplane.proof.watch import Watch
from controlplane.telemetry.queries import loads

EVERY_S = 0.2
SETTLED_S = 90.0
"""After the last answer: until its minute is in the database."""
COOLDOWN_S = 60.0
GUARDS = {"cooldown_s": COOLDOWN_S, "give_up": False}
"""A run is shorter than the ten minutes that the planner leaves a model alone after a change."""


@dataclass(frozen=True)
class Phase:
    """`share` of the run. `words` of a prompt, tokens of an `answer`: least and most. `rate`: requests/s."""

    name: str
    share: float
    rate: float
    words: tuple[int, int]
    answer: tuple[int, int]


PHASES = (
    Phase("long prompts, short answers", 0.25, 2.4, (1500, 2500), (12, 20)),
    Phase("short prompts, long answers", 0.75, 1.45, (30, 70), (150, 250)),
)


@dataclass(frozen=True)
class MinuteSeen:
    """As telemetry has it. `split`: engines that the model wanted at its end."""

    at_s: float
    arrived: float | None
    ttft_p99_ms: float | None
    itl_p99_ms: float | None
    split: str


@dataclass(frozen=True)
class Shifted:
    """What a run found. Times are seconds after its begin."""

    seed: int
    seconds: float
    shifted_at_s: float
    target_ttft_ms: float
    minutes: Sequence[MinuteSeen]
    changes: Sequence[dict[str, Any]]
    """Operations of the planner: when, what, how it ended, and the proposal's weightiest reason."""
    holds: Sequence[dict[str, Any]]
    requests: int
    lost: int
    skipped: int
    losses: Sequence[str]
    problems: Sequence[str]

    @property
    def answered_shift(self) -> bool:
        """The planner changed the split after the mix had shifted, and that ended well."""
        return any(each["at_s"] > self.shifted_at_s and each["state"] == "done" for each in self.changes)

    @property
    def holds_true(self) -> bool:
        return self.answered_shift and not self.lost and not self.skipped and not self.problems and self.requests > 0

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds_true,
            **{name: value for name, value in vars(self).items() if name not in ("minutes", "holds")},
            "minutes": [vars(each) for each in self.minutes],
            "planner_held": list(self.holds),
        }

    def lines(self) -> list[str]:
        """The last one sums up."""
        rows = ["minute  arrived/s  TTFT p99  ITL p99  prefill:decode wanted"]
        for number, each in enumerate(self.minutes, 1):
            rate = "-" if each.arrived is None else f"{each.arrived / MINUTE_S:.2f}"
            rows.append(f"{number:>6}  {rate:>9}  {_ms(each.ttft_p99_ms):>8}  {_ms(each.itl_p99_ms):>7}  {each.split}")
        told = [f"at {each['at_s']:.0f} s: {each['what']}: {each['state']} ({each['why']})" for each in self.changes]
        held = [f"held at {each['at_s']:.0f} s: {each['code']}: {each['reason']}" for each in self.holds]
        lost = [f"lost: {each}" for each in self.losses]
        return [*rows, *held, *told, *lost, *(f"problem: {each}" for each in self.problems), self._sum()]

    def _sum(self) -> str:
        count = len(self.changes)
        acted = f"{count} change{'' if count == 1 else 's'} by the planner" if count else "the planner changed nothing"
        counts = f"{self.requests} requests, {self.lost} lost, {self.skipped} not sent"
        verdict = "it holds" if self.holds_true else "it does not hold"
        return f"{verdict}: {acted}, the mix shifted at {self.shifted_at_s:.0f} s; {counts} (--seed {self.seed})"


def prove(fleet: Fleet, minutes: float, seed: int, display: Display, phases: Sequence[Phase] = PHASES) -> Shifted:
    """So many minutes of load. Raises database errors, Refused, and KeyboardInterrupt when it is stopped."""
    row = models.Model.objects.get()
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    change = actions.PlannerChange(level="automatic", guards=GUARDS)
    actions.set_planner(Actor.command_line(), row.name, change, reason="proof that the planner answers a shift")
    asked = [simulated_questions(row.name, row.block_size, chance, each.words, each.answer) for each in phases]
    watch = Watch(row.name)
    load = Arrivals("127.0.0.1", fleet.router_port, asked[0], phases[0].rate, random.Random(seed))  # noqa: S311
    began, began_at, splits = time.monotonic(), time.time(), dict[int, str]()
    display.planned(round(minutes * MINUTE_S))
    ends = [sum(each.share for each in phases[: number + 1]) * minutes * MINUTE_S for number in range(len(phases))]
    try:
        load.start()
        for phase, questions, end_s in zip(phases, asked, ends, strict=True):
            load.change(questions, phase.rate)
            display.doing(f"{phase.name}, {phase.rate:g} requests/s")
            while (passed := time.monotonic() - began) < end_s:
                watch.look()
                splits[int(passed // MINUTE_S)] = _split(row)
                display.seconds(passed, load)
                time.sleep(EVERY_S)
        display.doing("waiting for the ends of the streams")
        load.finish()
    finally:
        load.abandon()
    seconds = time.monotonic() - began
    display.doing("waiting for the last minute's figures")
    time.sleep(SETTLED_S)
    return Shifted(
        seed,
        seconds,
        ends[0],
        row.slo_ttft_ms,
        _minutes(row.name, began_at, minutes, splits),
        _changes(row, began_at),
        _holds(row, began_at),
        load.ended,
        load.lost,
        load.skipped,
        [f"{each.outcome}: {each.why} [{each.request_id}: {each.route}]" for each in load.losses[:10]],
        watch.problems[:10],
    )


def _split(model: models.Model) -> str:
    sizes = dict(model.pools.filter(arm=models.MAIN).values_list("role", "desired_engines"))
    return ":".join(str(sizes.get(role, 0)) for role in ("prefill", "decode"))


def _minutes(model: str, began_at: float, minutes: float, splits: dict[int, str]) -> list[MinuteSeen]:
    """Whole minutes of the clock that the run touched."""
    first = int(began_at // MINUTE_S * MINUTE_S)
    last = int((began_at + minutes * MINUTE_S) // MINUTE_S * MINUTE_S) + int(MINUTE_S)
    found, before = [], None
    for each in loads.minutes(model, first, last):
        minute = each.minute
        grown = (minute.open or 0.0) - before if before is not None else minute.open or 0.0
        arrived = None if minute.finished is None else minute.finished + grown
        before = minute.open or 0.0
        passed = max(0, int((minute.since_s - began_at) // MINUTE_S))
        found.append(
            MinuteSeen(minute.since_s - began_at, arrived, each.ttft_p99_ms, each.itl_p99_ms, splits.get(passed, ""))
        )
    return found


def _changes(model: models.Model, began_at: float) -> list[dict[str, Any]]:
    rows = models.Operation.objects.filter(model=model, actor=PLANNER, steps__isnull=False).distinct().order_by("pk")
    proposals = {each.operation_id: each for each in Proposal.objects.filter(operation__in=rows)}
    return [
        {
            "at_s": round(each.created_at.timestamp() - began_at, 1),
            "what": proposals[each.pk].title if each.pk in proposals else each.verb,
            "state": each.state,
            "seconds": round((each.finished_at - each.created_at).total_seconds(), 1) if each.finished_at else None,
            "why": next(iter(proposals[each.pk].reasons), "") if each.pk in proposals else each.reason,
        }
        for each in rows
    ]


def _holds(model: models.Model, began_at: float) -> list[dict[str, Any]]:
    rows = PlannerHold.objects.filter(model=model).order_by("pk")
    return [{"at_s": round(each.since.timestamp() - began_at, 1), "code": each.code, "reason": each.reason} for each in rows]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"

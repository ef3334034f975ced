"""How pools of engines get through one minute of traffic, and what its requests wait for. Pure; used by core/backlog.

Work that a pool of prompts does not get done is left for the next minute (a fluid queue), and so are answers under way.
Around that there are waits within the minute: Erlang's and Kingman's as in core/queueing while a pool keeps up, but no
longer than a minute lets a queue grow; while it works off a backlog, the spread of what arrived in a minute. Each part of it
only grows with the load and falls with more engines, also where one form goes over into the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controlplane.core.capacity import ANSWER_BURST, AWAY_STEPS, HERE_STEPS, STEP_TOKENS, EngineSpeed
from controlplane.core.queueing import Behind, Wait, erlang_c, held, normal_tail
from controlplane.core.workload import Cell, Mix

PARTS = 3
"""Of a window: within each of them rates are taken as even."""
GROWTH_S = 60.0
"""A queue of a pool that just keeps up grows by what chance brings in so long."""
GROWN = 0.8
"""Mean of a normal distribution's absolute value, in its standard deviations."""
FULLEST = 0.98
"""Busy share up to which chance waits are computed; beyond it the backlog is what counts."""
BATCHED = 1.0
"""Prompts that wait are computed together, and each is ready when all of its step are: by so much of what was before it."""
DOUBLING_GROUPS = 1.5
"""Prompt times are told apart as finely as this, per doubling."""
ANSWER_SPREAD = 0.6
"""How far answers' step times are from the pool's, in Poisson's spread: engines are chosen by their load."""
SEEN = 0.5
"""Answers beyond the average that one sees: itself and, as engines are chosen by their load, fewer others."""
LINK_MOST = 0.95


class Minute(NamedTuple):
    """A window as it is planned for. `weight`: how much a request of it counts."""

    seconds: float
    rate: float
    burst: float
    mix: Mix
    weight: float


class Prompts(NamedTuple):
    """The prompts of one minute that are computed in one place; times of one engine."""

    share: float
    """Of all requests."""
    mean_s: float
    square_s2: float
    """Of these prompts: mean time, and mean of its square."""
    step_s: float
    """A full step of them."""
    steps: float
    """Mean number of steps."""
    groups: tuple[tuple[float, float], ...]
    """(time of the prompt and its transfer, share of all requests), alike ones together."""
    moved_s: float
    """Mean transfer time on an idle link."""


class Prepared(NamedTuple):
    """A minute on one pair of engine kinds."""

    told: Minute
    away: Prompts
    here: Prompts
    output_tokens: float
    context: float
    """Mean context of its answers ÷ that of the mix for which the engine's steps are known."""


class Moment(NamedTuple):
    """A part of a minute, as it went."""

    weight: float
    minute: Prepared
    away: Wait | Behind
    here: Wait | Behind
    away_fixed_s: float
    here_fixed_s: float
    """What comes on top of each prompt's own time."""
    slot: Wait
    token_s: float
    spread_s: float


class Pools:
    """The engines, and what they have before them."""

    def __init__(self, answer: EngineSpeed, answers: int, prefills: int) -> None:
        self._answer, self._answers, self._prefills = answer, answers, prefills
        self._away_s = self._here_s = 0.0
        """Seconds of work of all engines together that is not done."""
        self._batch = 0.0
        """Answers that an engine has, and that wait for room in it, if prompts never were late."""
        self._step_s = answer.step_s(1)

    def through(self, minute: Prepared, scale: float) -> list[Moment]:
        """Lets a minute go by; `scale`: on its rate."""
        told, answer = minute.told, self._answer
        rate = told.rate * scale
        away, here = minute.away, minute.here
        along_s = max(0.0, self._step_s - answer.step_s(1))
        here_mean_s = here.mean_s + along_s * here.steps
        link = min(LINK_MOST, rate * away.share * away.moved_s / max(1, min(self._prefills, self._answers)))
        keeps_up = not self._away_s and rate * away.share * away.mean_s < self._prefills
        even = (keeps_up or not away.share) and not self._here_s and rate * here.share * here_mean_s < self._answers
        parts = 1 if even else PARTS
        span = rate, told.burst, told.seconds / parts
        waits, came = [], 0.0
        for _ in range(parts):
            away_wait, self._away_s, _ = _worked(away, away.mean_s, self._prefills, self._away_s, *span)
            here_wait, self._here_s, done = _worked(here, here_mean_s, self._answers, self._here_s, *span)
            waits.append((away_wait, here_wait))
            came += done / parts
        token_s, batch, slot = self._answered(minute, rate, came)
        spread = ANSWER_SPREAD * math.sqrt(batch * (1 + min(told.burst, ANSWER_BURST)) / 2)
        spread_s = answer.sequence_s[1] * minute.context * spread
        return [
            Moment(
                rate * told.seconds / parts * told.weight,
                minute,
                away_wait,
                here_wait,
                away.moved_s * link / (1 - link) + AWAY_STEPS * self._step_s,
                along_s * here.steps + HERE_STEPS * self._step_s,
                slot,
                token_s,
                max(spread_s, 1e-3 * token_s),
            )
            for away_wait, here_wait in waits
        ]

    def _answered(self, minute: Prepared, rate: float, came: float) -> tuple[float, float, Wait]:
        """The engines get `rate` requests/s to answer, and compute `came` prompts/s of them: time per token, answers of one
        at a time, the wait for room. The rate is that of what arrives: if late prompts took from it, fewer prefill engines
        could bring an earlier first token, which they cannot."""
        answer, here = self._answer, minute.here
        most = answer.most / minute.context
        stalls = came * here.steps / self._answers, min(1.0, came * here.mean_s / self._answers)
        life_s = self._token_s(*stalls) * minute.output_tokens
        batch, self._batch = held(self._batch, rate / self._answers, most, life_s, minute.told.seconds)
        self._step_s = answer.step_s(max(1.0, min((SEEN + batch) * minute.context, answer.most)))
        return self._token_s(*stalls), min(most, batch), _room(batch, most, life_s, minute.told.burst)

    def _token_s(self, stall_rate: float, stalled: float) -> float:
        """A prompt's step gives those who decode along a token, too."""
        along_s = max(0.0, self._step_s - self._answer.step_s(1))
        free = max(0.0, 1 - stalled - stall_rate * along_s)
        return max(self._step_s, 1 / max(1e-9, stall_rate + free / self._step_s))


def _worked(
    prompts: Prompts, mean_s: float, engines: int, left_s: float, rate: float, burst: float, seconds: float
) -> tuple[Wait | Behind, float, float]:
    """A pool takes its prompts for a while: their wait, the work that is left, and the prompts/s that were done."""
    rate *= prompts.share
    if not engines or not mean_s or (rate <= 0 and left_s <= 0):
        return Wait(0.0, 0.0), 0.0, 0.0
    work = rate * mean_s
    after_s = max(0.0, left_s + (work - engines) * seconds)
    done = (left_s + work * seconds - after_s) / seconds / mean_s
    spread_s = math.sqrt(rate * (prompts.square_s2 + (burst - 1) * mean_s**2) * GROWTH_S) / engines
    behind_s = (left_s + after_s) / 2 / engines
    chance = _chance(prompts, mean_s, work / engines, engines, burst, spread_s)
    if behind_s > 0:
        behind_s += BATCHED * min(max(0.0, prompts.step_s - mean_s), behind_s)
        return Behind(behind_s, max(spread_s, 1e-3 * mean_s), chance), after_s, done
    return chance, after_s, done


def _chance(prompts: Prompts, mean_s: float, busy: float, engines: int, burst: float, spread_s: float) -> Wait:
    """The wait in a pool that keeps up. Of a clump larger than the pool, some wait even if it was idle."""
    busy = min(FULLEST, busy)
    scv = max(0.0, prompts.square_s2 / prompts.mean_s**2 - 1)
    batched = 1 + BATCHED * max(0.0, 1 - mean_s / prompts.step_s)
    decay_s = mean_s * (burst + scv) / 2 / (engines * (1 - busy))
    free = (1 - erlang_c(engines, busy * engines)) * min(1.0, engines / burst)
    return Wait(1 - free, min(decay_s * batched, GROWN * spread_s))


def _room(batch: float, most: float, life_s: float, burst: float) -> Wait:
    """For a place in a batch."""
    if batch >= most:
        return Wait(1.0, max(life_s, (batch - most) * life_s / most))
    spread = math.sqrt(max(batch, 1e-9) * (1 + burst) / 2)
    return Wait(normal_tail((most - batch) / spread), life_s / max(1.0, most - batch))


def late(moment: Moment, seconds: float) -> float:
    """Share of its requests whose first token takes longer."""
    away, here = late_in(moment, seconds)
    return min(1.0, away + here)


def late_in(moment: Moment, seconds: float) -> tuple[float, float]:
    """The same by who holds them up: the prefill pool, the answering one (its prompts, and room in its batches)."""
    minute = moment.minute
    away_s, here_s = seconds - moment.away_fixed_s, seconds - moment.here_fixed_s
    away = math.fsum(share * moment.away.longer_than(away_s - own_s) for own_s, share in minute.away.groups)
    here = math.fsum(share * moment.here.longer_than(here_s - own_s) for own_s, share in minute.here.groups)
    if moment.slot.chance > 1e-4:
        mean_s = minute.away.share * minute.away.mean_s + minute.here.share * minute.here.mean_s
        here += moment.slot.longer_than(max(0.0, min(away_s, here_s) - mean_s))
    return away, here


def slow(moment: Moment, seconds: float) -> float:
    """Share of its answers whose tokens take longer on average."""
    return normal_tail((seconds - moment.token_s) / moment.spread_s)


def prepared(told: Minute, answer: EngineSpeed, prefill: EngineSpeed, local: Sequence[bool]) -> Prepared:
    """A minute on engines of these kinds; `local` by the cells of its mix."""
    mix = told.mix
    cells = list(zip(mix.cells, local, strict=True))
    away = _prompts([cell for cell, here in cells if not here], mix.count, prefill, moves=True)
    here = _prompts([cell for cell, here in cells if here], mix.count, answer, moves=False)
    tokens = math.fsum(cell.requests * cell.output_tokens for cell in mix.cells)
    contexts = math.fsum(
        cell.requests * cell.output_tokens * (cell.prompt_tokens + cell.output_tokens / 2) for cell in mix.cells
    )
    return Prepared(told, away, here, max(1.0, tokens / mix.count), contexts / tokens / answer.context[0])


def _prompts(cells: Sequence[Cell], count: float, speed: EngineSpeed, moves: bool) -> Prompts:
    """Of `count` requests those of `cells`."""
    if not cells:
        return NONE
    groups: dict[int, list[float]] = {}
    share = mean = square = steps = moved = tokens = 0.0
    for cell in cells:
        chunks = speed.prompt_s(cell)
        part, own_s, moved_s = cell.requests / count, math.fsum(chunks), speed.transfer_s(cell) if moves else 0.0
        share += part
        mean += part * own_s
        square += part * own_s**2
        steps += part * len(chunks)
        moved += part * moved_s
        tokens += part * max(1.0, cell.prompt_tokens - cell.cached_tokens)
        group = groups.setdefault(math.floor(math.log2(own_s + moved_s) * DOUBLING_GROUPS), [0.0, 0.0])
        group[0] += part * (own_s + moved_s)
        group[1] += part
    alike = tuple((total / part, part) for total, part in groups.values())
    step_s = mean / share * max(1.0, STEP_TOKENS * share / tokens)
    return Prompts(share, mean / share, square / share, step_s, steps / share, alike, moved / share)


NONE = Prompts(0.0, 0.0, 0.0, 0.0, 0.0, (), 0.0)

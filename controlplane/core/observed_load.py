"""Workload windows from what routers and engines told: arrivals, lengths, bursts. Pure.

Routers tell of a request when it ends, and a busy one of every so many that went well (`weight`). So arrivals are what ended
plus what the engines' open requests grew by, and lengths and bursts are those of the sample, made whole by the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.workload import LEAST_BURST, MOST_BURST, Mix, Seen, Window, burst_of, merged_mix, mix_of, offered_rate

MINUTE_S = 60.0
UNTOLD = 5.0
"""Requests that engines finished in a minute in which no router told of one: the routers' telemetry is missing."""
Sampled = tuple[Seen, int]
"""A request, and how many it stands for."""


@dataclass(frozen=True)
class Minute:
    """One minute of a model. `finished`: requests that ended, those refused for what they asked not counted; None: no router
    told. `open`: in the engines, on average; None: no engine told. `engine_finished`: by the engines' own counters, which
    count where no router told of the few requests that there were."""

    since_s: float
    finished: float | None
    open: float | None
    engine_finished: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether both sides were heard. Engines that work while routers say nothing mean a gap, and not an idle model."""
        return self.open is not None and (bool(self.finished) or self.engine_finished < UNTOLD)


def windows_of(minutes: Sequence[Minute], sampled: Iterable[Sampled] = ()) -> tuple[Window, ...]:
    """A window for each minute, in their order."""
    found: dict[float, list[Sampled]] = {}
    for one in sampled:
        found.setdefault(one[0].at_s // MINUTE_S * MINUTE_S, []).append(one)
    windows = []
    before: Minute | None = None
    for minute in sorted(minutes, key=lambda each: each.since_s):
        windows.append(_window(minute, before, found.get(minute.since_s, ())))
        before = minute
    return tuple(windows)


def _window(minute: Minute, before: Minute | None, inside: Sequence[Sampled]) -> Window:
    until_s = minute.since_s + MINUTE_S
    follows = before is not None and before.since_s + MINUTE_S == minute.since_s
    was_open = before.open if before is not None and follows else None
    is_open = minute.open or 0.0
    ended = minute.engine_finished if minute.finished is None else minute.finished
    return Window(
        minute.since_s,
        until_s,
        offered_rate(ended, is_open if was_open is None else was_open, is_open, MINUTE_S),
        weighted_mix(inside),
        sampled_burst(inside, minute.since_s, until_s),
        len(inside),
        minute.complete,
    )


def weighted_mix(sampled: Iterable[Sampled]) -> Mix:
    """The mix that the sample stands for."""
    by_weight: dict[int, list[Seen]] = {}
    for seen, weight in sampled:
        by_weight.setdefault(weight, []).append(seen)
    return merged_mix((mix_of(seen), float(weight)) for weight, seen in sorted(by_weight.items()))


def sampled_burst(sampled: Sequence[Sampled], since_s: float, until_s: float) -> float:
    """Of the arrivals that the sample stands for: where one in `w` is told, variance ÷ mean comes nearer to 1 by as much."""
    if not sampled:
        return LEAST_BURST
    weight = sum(weight for _, weight in sampled) / len(sampled)
    seen = burst_of((each.at_s for each, _ in sampled), since_s, until_s)
    return min(MOST_BURST, 1 + (seen - 1) * weight)


def trustworthy(windows: Sequence[Window], span_s: float) -> bool:
    """Whether more than half of the last `span_s` was observed: else earlier days would make a gap look like idleness."""
    if not windows:
        return False
    recent = [each for each in windows if each.until_s > windows[-1].until_s - span_s]
    return 2 * sum(each.complete for each in recent) > len(recent)


def ratio(measured_ms: float | None, predicted_s: float | None) -> float | None:
    """Measured ÷ predicted; None where either is not known."""
    return measured_ms / 1e3 / predicted_s if measured_ms and predicted_s else None


def engine_moves(steps: Mapping[float, int]) -> tuple[float, ...]:
    """When engines moved, one time each, from how many did at each time."""
    return tuple(at_s for at_s, count in sorted(steps.items()) for _ in range(count))

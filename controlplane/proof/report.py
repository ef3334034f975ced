"""What a proof found, for people (figures, then one line that sums up) and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.proof.replies import OUTCOMES
from controlplane.proof.schedule import Ended
from controlplane.proof.streams import Loss, Streams
from controlplane.proof.watch import Watch, as_json

SHOWN = 10
"""Losses and problems that are told one by one."""


@dataclass(frozen=True)
class Report:
    """Of one run. `seconds`: from the first change asked for to the last one's end."""

    seed: int
    streams: Streams
    watch: Watch
    ended: Sequence[Ended]
    planned: int
    seconds: float

    @property
    def bad_changes(self) -> list[Ended]:
        return [each for each in self.ended if not each.good]

    @property
    def holds(self) -> bool:
        """Nothing was lost, every change was done, and no table left a pool without an engine."""
        complete = len(self.ended) == self.planned and not self.bad_changes
        return complete and not self.streams.lost and self.streams.ended > 0 and not self.watch.problems

    def as_json(self) -> dict[str, Any]:
        operations = Counter(f"{each.change.verb} {each.state}" for each in self.ended)
        return {
            "holds": self.holds,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "streams": {name: self.streams.counts[name] for name in OUTCOMES},
            "requests": self.streams.ended,
            "tokens": self.streams.tokens,
            "ways": dict(self.streams.ways.most_common()),
            "longest_pause_ms": round(self.streams.longest_pause_s * 1000),
            "operations": dict(sorted(operations.items())),
            "operations_planned": self.planned,
            **as_json(self.watch),
            "losses": [vars(each) for each in self.streams.losses[:SHOWN]],
            "problems": self.problems(),
        }

    def problems(self) -> list[str]:
        """What speaks against it beside losses."""
        bad = [f"operation {each.operation} ({each.change}) is {each.state}: {each.outcome}" for each in self.bad_changes]
        return [*bad[:SHOWN], *self.watch.problems[:SHOWN]]

    def lines(self) -> list[str]:
        """The last one sums up."""
        figures, streams = self.as_json(), self.streams
        pause = _ms(figures["longest_pause_ms"])
        rows = [
            ("requests", f"{streams.ended}, {streams.tokens} tokens; the longest pause within one {pause}"),
            ("ways", ", ".join(f"{count} {way}" for way, count in figures["ways"].items()) or "none"),
            ("retasks", f"{self.watch.retasks}, {self.watch.flips} of them from one table to the next"),
            ("drain", f"{_told(figures['drain_ms'])} of {figures['drains']}"),
            ("out of service", f"{_told(figures['out_of_service_ms'])} of {len(self.watch.out_of_service_s)}"),
            ("without drain", _told(figures["out_of_service_beside_drain_ms"])),
            ("operations", ", ".join(f"{count} {name}" for name, count in figures["operations"].items()) or "none"),
        ]
        told = [f"{name:<15} {text}" for name, text in rows]
        told += [f"lost: {_loss(each)}" for each in streams.losses[:SHOWN]]
        told += [f"problem: {each}" for each in self.problems()]
        return [*told, self._sum()]

    def _sum(self) -> str:
        counts = self.streams.counts
        lost = (
            f"{counts['refused'] + counts['failed']} failed, {counts['truncated']} truncated, {counts['duplicated']} "
            f"duplicated, {counts['wrong']} with another text of {self.streams.ended} streams"
        )
        done = f"{len(self.ended) - len(self.bad_changes)} of {self.planned} operations done in {self.seconds:.0f} s"
        return f"{'nothing was lost' if self.holds else 'it does not hold'}: {lost}; {done} (--seed {self.seed})"


def _loss(loss: Loss) -> str:
    return f"{loss.outcome}: {loss.why} [{loss.request_id}: {loss.route}]"


def _told(values: dict[str, float | None]) -> str:
    return f"p50 {_ms(values['p50'])}, p99 {_ms(values['p99'])}"


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} ms"

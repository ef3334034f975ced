"""What becomes of proposals when the planner has looked again: made, seen again, superseded or expired. Pure.

A proposal that a look makes again stays the one that it was, with its time to live; one whose need is gone is superseded.
What only stops the planner for a while (stale metrics, an operation that runs) leaves an open proposal as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.core.counts import some
from controlplane.core.planner_types import Decision, Hold, HoldCode, Proposal

NEEDLESS: frozenset[HoldCode] = frozenset(
    {"off", "good", "hysteresis", "consolidation", "infeasible", "no_gpus", "no_hardware"}
)
"""Reasons to hold that say that the change is not wanted (any more)."""
KEY_CHARS = 500
Ending = Literal["expired", "superseded"]


@dataclass(frozen=True)
class Standing:
    """An open proposal. `number`: of its row."""

    number: int
    model: str
    key: str
    expires_at_s: float


@dataclass(frozen=True)
class Rejection:
    """Somebody said no to this change; it is not proposed again before `until_s`."""

    model: str
    key: str
    by: str
    reason: str
    until_s: float


@dataclass(frozen=True)
class Void:
    """An open proposal ends undecided."""

    number: int
    ending: Ending
    why: str


@dataclass(frozen=True)
class Review:
    """What is to be written. `seen`: rows that were proposed again."""

    made: tuple[Proposal, ...]
    seen: tuple[tuple[int, Proposal], ...]
    void: tuple[Void, ...]
    holds: tuple[Hold, ...]


def key_of(proposal: Proposal) -> str:
    """What a row keeps to know the same change by."""
    return proposal.id[:KEY_CHARS]


def expired(standing: Iterable[Standing], now_s: float) -> tuple[Void, ...]:
    """Those whose time is over."""
    return tuple(Void(each.number, "expired", "Nobody decided in time.") for each in standing if each.expires_at_s <= now_s)


def review(decision: Decision, standing: Sequence[Standing], rejections: Sequence[Rejection]) -> Review:
    """`standing`: at most one of a model, none of which is expired at `decision.at_s`."""
    open_of = {each.model: each for each in standing}
    made: list[Proposal] = []
    seen: list[tuple[int, Proposal]] = []
    void: list[Void] = []
    holds: list[Hold] = list(decision.holds)
    for hold in decision.holds:
        if hold.model in open_of and hold.code in NEEDLESS:
            void.append(Void(open_of[hold.model].number, "superseded", hold.reason))
    for proposal in decision.proposals:
        known = open_of.get(proposal.model)
        if known is not None and known.key == key_of(proposal):
            seen.append((known.number, proposal))
            continue
        if known is not None:
            void.append(Void(known.number, "superseded", "The planner proposes another change by now."))
        no = _refused(proposal, rejections, decision.at_s)
        if no is None:
            made.append(proposal)
        else:
            holds.append(Hold(proposal.model, "manual", _told(no, decision.at_s), proposal.now, proposal.inputs))
    return Review(tuple(made), tuple(seen), tuple(void), tuple(holds))


def _refused(proposal: Proposal, rejections: Iterable[Rejection], now_s: float) -> Rejection | None:
    found = (
        each for each in rejections if (each.model, each.key) == (proposal.model, key_of(proposal)) and each.until_s > now_s
    )
    return max(found, key=lambda each: each.until_s, default=None)


def _told(no: Rejection, now_s: float) -> str:
    why = f" ({no.reason})" if no.reason else ""
    return f"{no.by} rejected this change{why}: it is not proposed again for {some((no.until_s - now_s) / 60, 'minute')}."

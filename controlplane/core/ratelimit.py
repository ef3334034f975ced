"""Requests and tokens of a team in a sliding minute, and whether one more request fits under its limits. Pure.

A window is a flat row of integers ("cells"), so that it can lie in memory shared by processes: each process writes its own
windows only, and a decision is made over the sum. One second is one slot. What was counted in second s counts until s + 60
is over, so no 60 seconds ever hold more than a limit, and a place is given back at most a second late.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from typing import Literal, NamedTuple

WINDOW_S = 60
SLOTS = WINDOW_S + 1
"""The current second, which has not passed yet, and 60 before it."""
CELLS = 3 + 2 * SLOTS
"""Of a window: the second it was brought up to, requests, tokens; then requests and tokens of each second."""

Cells = MutableSequence[int] | memoryview
Kind = Literal["requests", "tokens"]


class Used(NamedTuple):
    """In the last minute."""

    requests: int
    tokens: int


class Decision(NamedTuple):
    """`refused` is the limit that a request would break, or "" if it fits."""

    refused: Kind | Literal[""]
    wait_s: int = 0
    """Until it would fit if nothing else came, at least 1; 0: it fits now, or (`too_large`) never."""
    too_large: bool = False
    """It alone is over the limit."""


def advance(cells: Cells, now_s: int) -> None:
    """Forgets what is older than a minute. Time never goes back: an earlier `now_s` changes nothing."""
    last = cells[0]
    if now_s <= last:
        return
    for second in range(max(last + 1, now_s - SLOTS + 1), now_s + 1):
        at = 3 + 2 * (second % SLOTS)
        if cells[at] or cells[at + 1]:
            cells[1] -= cells[at]
            cells[2] -= cells[at + 1]
            cells[at] = cells[at + 1] = 0
    cells[0] = now_s


def add(cells: Cells, now_s: int, requests: int, tokens: int) -> None:
    """Counts in the current second."""
    advance(cells, now_s)
    at = 3 + 2 * (cells[0] % SLOTS)
    cells[at] += requests
    cells[at + 1] += tokens
    cells[1] += requests
    cells[2] += tokens


def settle(cells: Cells, charged_s: int, now_s: int, charged: int, used: int) -> None:
    """Replaces the `charged` tokens of second `charged_s` by those that were really `used`. More count from now; what was
    charged too much is given back where it was charged, or is over a minute old already."""
    advance(cells, now_s)
    if used >= charged:
        add(cells, now_s, 0, used - charged)
    elif cells[0] - charged_s < SLOTS:
        at = 4 + 2 * (charged_s % SLOTS)
        back = min(charged - used, cells[at])
        cells[at] -= back
        cells[2] -= back


def used(cells: Sequence[int] | memoryview, now_s: int) -> Used:
    """Of a window that somebody else keeps up to date: too much by what has passed since that."""
    return Used(cells[1], cells[2]) if now_s - cells[0] < SLOTS else Used(0, 0)


def decide(limits: tuple[int | None, int | None], so_far: Used, tokens: int) -> Literal["requests", "tokens", ""]:
    """The limit (requests, tokens per minute; None: none) that one more request of `tokens` would break."""
    requests_limit, tokens_limit = limits
    if requests_limit is not None and so_far.requests >= requests_limit:
        return "requests"
    return "tokens" if tokens_limit is not None and so_far.tokens + tokens > tokens_limit else ""


def refusal(kind: Kind, limit: int, tokens: int, windows: Iterable[Sequence[int]], now_s: int) -> Decision:
    """How long a request that broke a limit has to wait: until enough seconds of all `windows` are over a minute old."""
    need = 1 if kind == "requests" else tokens
    if need > limit:
        return Decision(kind, 0, too_large=True)
    column = 0 if kind == "requests" else 1
    by_age = [0] * SLOTS
    for cells in windows:
        for age in range(max(0, now_s - cells[0]), SLOTS):
            by_age[age] += cells[3 + 2 * ((now_s - age) % SLOTS) + column]
    left = sum(by_age)
    for age in range(SLOTS - 1, -1, -1):
        left -= by_age[age]
        if left + need <= limit:
            return Decision(kind, SLOTS - age)
    return Decision(kind, SLOTS)

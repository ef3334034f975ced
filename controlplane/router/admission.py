"""What an API key lets a client do beyond the model: its team's requests and tokens a minute, its priority, its prefixes.

Limits are the key's, usage is the team's: all keys of a team draw on the same minute. Tokens are an estimate of the prompt
when a request is let in; when it is over, they are what the engine counted, prompt and answer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import orjson

from controlplane.core import ratelimit
from controlplane.core.protocol import KeyEntry, RoutingTable
from controlplane.core.ratelimit import CELLS, Cells
from controlplane.core.reasons import Reason
from controlplane.router.errors import ApiError, bad_request
from controlplane.router.usage import Usage

MAX_SALT = 128
_NO_SALT = frozenset("@/\\\0")
"""vLLM refuses a longer `cache_salt`, and one with any of these."""


class Book(Protocol):
    """Where the windows of teams lie: in this process alone, or in memory that a router's processes share."""

    def keep(self, teams: frozenset[str]) -> None:
        """These teams have limits now."""
        ...

    def own(self, team: str) -> Cells:
        """The window that this process writes."""
        ...

    def elsewhere(self, team: str) -> Sequence[Sequence[int] | memoryview]:
        """Those of the other processes."""
        ...


class OwnBook:
    """Of a router that is one process."""

    def __init__(self) -> None:
        self._windows: dict[str, list[int]] = {}

    def keep(self, teams: frozenset[str]) -> None:
        self._windows = {team: self._windows.get(team) or [0] * CELLS for team in teams}

    def own(self, team: str) -> Cells:
        return self._windows[team]

    def elsewhere(self, team: str) -> Sequence[Sequence[int]]:
        return ()


class Charge:
    """One request's share of its team's minute."""

    __slots__ = ("at_s", "lines", "refused", "team", "tokens")

    def __init__(
        self,
        lines: bytes = b"",
        refused: ApiError | None = None,
        team: str | None = None,
        at_s: int = 0,
        tokens: int = 0,
    ) -> None:
        self.lines = lines
        """x-ratelimit-* header lines of the answer."""
        self.refused = refused
        """Set: the request must not go on."""
        self.team = team
        """None: nothing was counted."""
        self.at_s = at_s
        self.tokens = tokens


NOTHING = Charge()


class Quotas:
    """The limits of all teams, as this router applies them."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._teams: frozenset[str] = frozenset()
        self.hosts = 1
        """Live routers among which a team's limits are divided."""

    def apply(self, table: RoutingTable) -> None:
        self._teams = frozenset(key.team for key in table.keys if key.has_limits)
        self._book.keep(self._teams)

    def sweep(self) -> None:
        """Called about twice a second: brings windows up to date for the processes that read them."""
        now_s = _now_s()
        for team in self._teams:
            ratelimit.advance(self._book.own(team), now_s)

    def charge(self, key: KeyEntry | None, tokens: int) -> Charge:
        """Counts a request of about `tokens` prompt tokens, or refuses it uncounted."""
        if key is None or not key.has_limits or key.team not in self._teams:
            return NOTHING
        now_s, cells = _now_s(), self._book.own(key.team)
        limits = (self._share(key.requests_per_minute), self._share(key.tokens_per_minute))
        ratelimit.advance(cells, now_s)
        requests, spent = cells[1], cells[2]
        others = self._book.elsewhere(key.team)
        for each in others:
            used = ratelimit.used(each, now_s)
            requests += used.requests
            spent += used.tokens
        refused = ratelimit.decide(limits, ratelimit.Used(requests, spent), tokens)
        if refused:
            windows = [list(each) for each in (cells, *others)]
            limit = limits[0] if refused == "requests" else limits[1]
            assert limit is not None
            decision = ratelimit.refusal(refused, limit, tokens, windows, now_s)
            error = _too_many(decision, limit, requests if refused == "requests" else spent, tokens)
            extra = b"x-should-retry: false\r\n" if decision.too_large else b""
            return Charge(_lines(limits, requests, spent) + extra, error)
        ratelimit.add(cells, now_s, 1, tokens)
        return Charge(_lines(limits, requests + 1, spent + tokens), None, key.team, now_s, tokens)

    def settle(self, charge: Charge, tokens: int) -> None:
        """The request is over and took so many tokens. Only the first call counts."""
        team, charge.team = charge.team, None
        if team in self._teams:
            ratelimit.settle(self._book.own(team), charge.at_s, _now_s(), charge.tokens, tokens)

    def _share(self, limit: int | None) -> int | None:
        if limit is None or limit <= 0:
            return limit
        return max(1, limit // self.hosts)


def _now_s() -> int:
    return int(time.monotonic())  # the same for all processes of a machine


def _too_many(decision: ratelimit.Decision, limit: int, used: int, tokens: int) -> ApiError:
    """As OpenAI words it, so that clients written for it know what to do."""
    what = "requests per min (RPM)" if decision.refused == "requests" else "tokens per min (TPM)"
    wanted = 1 if decision.refused == "requests" else tokens
    if decision.too_large:
        message = f"Request too large on {what}: Limit {limit}, Requested {wanted}."
    else:
        message = (
            f"Rate limit reached on {what}: Limit {limit}, Used {used}, Requested {wanted}. "
            f"Please try again in {decision.wait_s}s."
        )
    return ApiError(
        429,
        message,
        Reason.RATE_LIMITED,
        code="rate_limit_exceeded",
        retry_after_s=None if decision.too_large else decision.wait_s,
        type=decision.refused,
    )


def _lines(limits: tuple[int | None, int | None], requests: int, tokens: int) -> bytes:
    """OpenAI's headers. A sliding minute is empty again a minute after the newest request, which is this one."""
    lines = b""
    for what, limit, used in ((b"requests", limits[0], requests), (b"tokens", limits[1], tokens)):
        if limit is not None:
            lines += (
                b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: 1m%ds\r\n"
                % (what, max(0, limit), what, max(0, limit - used), what, ratelimit.SLOTS - ratelimit.WINDOW_S)
            )  # fmt: skip
    return lines


def check_priority(key: KeyEntry | None, data: Mapping[str, Any]) -> None:
    """Raises ApiError 403 if a request wants to go before others by more than its key may. vLLM serves lower values first,
    and 0 is what a request without `priority` has."""
    priority = data.get("priority")
    if key is None or priority is None:
        return
    if type(priority) is not int:  # engines would read "-5" and true as numbers
        raise bad_request("`priority` must be an integer.", param="priority")
    if -priority > key.max_priority:
        lowest = -key.max_priority
        message = f"This API key does not allow `priority` below {lowest}."
        raise ApiError(403, message, Reason.FORBIDDEN, code="priority_forbidden", param="priority")


def team_salt(key: KeyEntry | None, data: Mapping[str, Any]) -> str | None:
    """The `cache_salt` that keeps a team's prefixes to itself, whatever salt its client chose; None without a key."""
    if key is None:
        return None
    salt = data.get("cache_salt")
    if salt is not None and (type(salt) is not str or not salt):
        raise bad_request("`cache_salt` must be a string that is not empty.", param="cache_salt")
    return _salt_of(key.team, salt)


@lru_cache(maxsize=1024)
def _salt_of(team: str, salt: str | None) -> str:
    both = orjson.dumps([team] if salt is None else [team, salt]).decode()
    if len(both) <= MAX_SALT and _NO_SALT.isdisjoint(both):
        return both
    return hashlib.sha256(both.encode()).hexdigest()


def tokens_used(counted: Usage, estimate: int, served: bool) -> int:
    """What a request has cost its team: what the engine counted, the estimate where it told nothing, nothing at all if no
    engine served it."""
    return (estimate if counted.prompt is None else counted.prompt) + (counted.output or 0) if served else 0

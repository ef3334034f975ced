"""What sessions of a model with a canary see, told to control: every request counts, whatever the telemetry stream samples.

Requests of a session are put together, so that a report is small, and saying it twice changes nothing. Beyond
MOST_SESSIONS a second only those with a low hash are told of, which has nothing to do with their arm or how they fared.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.core import names, signing
from controlplane.core.codec import encode
from controlplane.core.protocol import CanaryReport, SessionSeen, Slo
from controlplane.core.routing import mix

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from controlplane.router.exchange import Exchange

MOST_SESSIONS = 100
"""In one report: more would not make a verdict come much sooner, and each is a row."""
KEPT_REPORTS = 60
"""While Valkey is away; then the oldest are dropped."""
STREAM_MAXLEN = 5000
STREAM_TTL_S = 6 * 3600
"""Reports that nobody reads, of a canary that has ended, are gone after so long."""
_EVERY = (1 << 64) - 1
_THIN_SALT = 0x7468696E


class Trials:
    """Reports of one router process on their way. The request path only puts values into a dict."""

    def __init__(self, router_id: str) -> None:
        self._router = router_id
        self._seen: dict[int, dict[int, SessionSeen]] = {}
        """Canary -> session -> what was seen since the last report."""
        self._limit = _EVERY
        """Sessions whose thinning hash is above it are not told of now."""
        self._waiting: deque[CanaryReport] = deque(maxlen=KEPT_REPORTS)

    def saw(self, canary: int, key: int, seen: SessionSeen) -> None:
        if mix(key, _THIN_SALT) > self._limit:
            return
        sessions = self._seen.setdefault(canary, {})
        before = sessions.get(key)
        sessions[key] = seen if before is None else together(before, seen)
        if len(sessions) > MOST_SESSIONS:
            self._limit //= 2
            self._seen = {
                id: {key: seen for key, seen in found.items() if mix(key, _THIN_SALT) <= self._limit}
                for id, found in self._seen.items()
            }

    def next_report(self) -> CanaryReport | None:
        """The oldest that is not `confirmed` yet; None if there is nothing."""
        if not self._waiting:
            self._make_reports()
        return self._waiting[0] if self._waiting else None

    def confirmed(self) -> None:
        self._waiting.popleft()

    def _make_reports(self) -> None:
        if max(map(len, self._seen.values()), default=0) < MOST_SESSIONS // 4:
            self._limit = min(_EVERY, self._limit * 2 + 1)
        for canary, sessions in self._seen.items():
            if sessions:
                self._waiting.append(CanaryReport(canary, self._router, tuple(sessions.values())))
        self._seen = {}


def together(one: SessionSeen, other: SessionSeen) -> SessionSeen:
    """Two parts of what one session saw. Its arm is the first's: one that moves in between counts where it was."""
    if one.canary != other.canary:
        return one
    return replace(
        one,
        at=min(one.at, other.at),
        over=one.over or other.over,
        failed=one.failed or other.failed,
        kv_lost=one.kv_lost or other.kv_lost,
        fell_back=one.fell_back or other.fell_back,
        ttft_ms=_longest(one.ttft_ms, other.ttft_ms),
        itl_ms=_longest(one.itl_ms, other.itl_ms),
    )


def _longest(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)


def tell(x: Exchange, ttft_s: float | None, pace_s: float | None, now: float) -> None:
    """A request of a model with a canary is over. A client's own mistake says nothing of an arm."""
    canary = x.model.route.canary
    if canary is None or x.outcome == "client_error":
        return
    failed = x.outcome in ("engine_error", "cut") or x.retries > 0 or x.resumes > 0
    lost = x.outcome in ("engine_error", "cut")
    seen = SessionSeen(
        session=f"{x.need.session:016x}",
        canary=x.canary,
        at=x.arrived_at,
        over=lost or over_slo(x, x.model.route.slo, ttft_s, pace_s, now - x.started),
        failed=failed,
        kv_lost=x.kv_lost,
        fell_back=x.fell_back,
        ttft_ms=ttft_s * 1000.0 if ttft_s is not None and x.body.stream else None,
        itl_ms=pace_s * 1000.0 if pace_s is not None else None,
    )
    x.router.telemetry.session(canary.id, x.need.session, seen)


def over_slo(x: Exchange, slo: Slo, ttft_s: float | None, pace_s: float | None, total_s: float) -> bool:
    """A stream by its first byte and its mean time between tokens; a whole answer by the time that both allow it together.
    One whose client left is over if it was by then."""
    if x.body.stream:
        waited_s = total_s if ttft_s is None else ttft_s
        return waited_s * 1000.0 > slo.ttft_ms or (pace_s is not None and pace_s * 1000.0 > slo.itl_ms)
    gaps = max(0, (x.usage.output or 1) - 1)
    return total_s * 1000.0 > slo.ttft_ms + gaps * slo.itl_ms


async def send(valkey: Redis, key: signing.Secret, trials: Trials) -> None:
    """Everything that waits. Raises redis errors; what was not sent waits on."""
    while (report := trials.next_report()) is not None:
        stream = names.canary_stream(report.canary)
        pipeline = valkey.pipeline(transaction=False)
        pipeline.xadd(stream, {"r": signing.seal(key, encode(report))}, maxlen=STREAM_MAXLEN, approximate=True)
        pipeline.expire(stream, STREAM_TTL_S)
        await pipeline.execute()
        trials.confirmed()

"""The record of a finished request: counted exactly in /metrics, and told to the telemetry stream, where it is sampled.

Failed, retried and slow requests are always told. Of the others a busy router tells every so many, and says how many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import add, sub
from typing import TYPE_CHECKING

from controlplane.core.protocol import ITL_BOUNDS_MS, Passed, RequestRow
from controlplane.core.scoring import Leg
from controlplane.router import identity, trials
from controlplane.router.usage import Usage

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange


def make(x: Exchange, now: float) -> None:
    """Counts a request of a known model, and tells it if its turn is. `now`: monotonic."""
    counters, telemetry = x.router.counters, x.router.telemetry
    ttft_s = None if x.first_at is None else x.first_at - x.started
    pace_s = _seconds_per_token(x, now)
    if x.outcome == "ok":
        if ttft_s is not None:
            counters.saw_ttft(x.model_name, ttft_s)
        if pace_s is not None:
            counters.saw_pace(x.model_name, pace_s)
    handoff_s = _between(x.prefill_end, x.first_at)
    if x.status == 200:
        counters.finished(x.prefill_id, x.decode_id, x.usage.prompt, x.usage.output, x.kv_bytes, handoff_s)
    slo = x.model.route.slo
    slow = (ttft_s is not None and ttft_s * 1000.0 > slo.ttft_ms) or (pace_s is not None and pace_s * 1000.0 > slo.itl_ms)
    if x.model.route.canary is not None:
        trials.tell(x, ttft_s, pace_s, now)
    weight = x.router.sampler.weight(slow or x.retries > 0 or x.resumes > 0 or x.outcome not in ("ok", "client_error"))
    if weight:
        telemetry.request(_row(x, now, weight))
    elif x.outcome != "client_error":
        telemetry.untold(x.model_name, x.team, x.key_digest, _used(x))


def _used(x: Exchange) -> Usage:
    """What was cached counts where the prompt was computed."""
    return Usage(x.usage.prompt, x.usage.output, x.usage.cached if x.prefill_end is None else x.cached_tokens)


def _row(x: Exchange, now: float, weight: int) -> RequestRow:
    relay, used = x.relay, _used(x)
    if relay is not None:
        relay.count_gaps()
    return RequestRow(
        id=x.id.decode(),
        model=x.model_name,
        path=x.path.value,
        reason=x.reason.value,
        status=x.status,
        outcome=x.outcome,  # type: ignore[arg-type]  # only set from the closed list
        arrived_at=x.arrived_at,
        stream=x.body.stream,
        prefill_engine=x.prefill_id,
        decode_engine=x.decode_id,
        queue_ms=_ms(_between(x.started, x.sent_at)),
        prefill_ms=x.prefill_ms,
        handoff_ms=_ms(_between(x.prefill_end, x.first_at)),
        ttft_ms=_ms(_between(x.started, x.first_at)),
        total_ms=(now - x.started) * 1000.0,
        itl_ms=tuple(relay.gaps_ms) if relay is not None else (),
        itl_counts=gap_counts(relay.gaps_ms, relay.gaps_beyond) if relay is not None and relay.gaps_ms else (),
        prompt_tokens=used.prompt,
        output_tokens=used.output,
        cached_tokens=used.cached,
        kv_bytes=x.kv_bytes,
        retries=x.retries,
        resumes=x.resumes,
        passed=_passed(x),
        weight=weight,
        session=f"{x.need.session:016x}",
        arm=x.arm,
        team=x.team,
        api_key=x.key_digest,
        others_told=True,
        traceparent=identity.traceparent(x.request.headers).decode(),
    )


def gap_counts(gaps_ms: Sequence[float], beyond: Sequence[int]) -> tuple[int, ...]:
    """How many gaps between chunks were up to each of ITL_BOUNDS_MS, and how many above the last."""
    ordered = sorted(gaps_ms)
    up_to = [bisect_right(ordered, bound) for bound in ITL_BOUNDS_MS]
    counts = map(sub, (*up_to, len(ordered)), (0, *up_to))
    return tuple(map(add, counts, beyond)) if beyond else tuple(counts)


def _passed(x: Exchange) -> tuple[Passed, ...]:
    """The best engines that were not taken, leg by leg."""
    legs: tuple[Leg, ...] = ("prefill", "decode", "whole")
    return tuple(Passed(leg, engine, score) for leg in legs if leg in x.choices for engine, score in x.choices[leg].others)


def _seconds_per_token(x: Exchange, now: float) -> float | None:
    """Mean time between output tokens of a stream; None if it had none to measure."""
    tokens = x.usage.output
    return None if not x.body.stream or x.first_at is None or not tokens or tokens < 2 else (now - x.first_at) / (tokens - 1)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0

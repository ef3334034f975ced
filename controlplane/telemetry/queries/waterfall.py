"""A request's time, cut into stages. Pure."""

from __future__ import annotations

from typing import Protocol

from controlplane.telemetry.queries.records import Stage


class Timed(Protocol):
    """A finished request: as it is stored, or as its router tells it. ms; None where the stage did not happen."""

    @property
    def queue_ms(self) -> float | None: ...
    @property
    def prefill_ms(self) -> float | None: ...
    @property
    def handoff_ms(self) -> float | None: ...
    @property
    def ttft_ms(self) -> float | None: ...
    @property
    def total_ms(self) -> float | None: ...


def stages(record: Timed) -> list[Stage]:
    """In order, without gaps, from arrival (0) to the end; empty when the record tells no time. Counted back from the first
    byte, because what failed before does not show: `retries` is the time between the first leg's start and the leg that went
    well."""
    total, first = record.total_ms, record.ttft_ms
    if total is None:
        return []
    ends = total if first is None else min(first, total)
    parts: list[tuple[str, float]] = []
    queue = min(record.queue_ms or 0.0, ends)
    handoff = min(record.handoff_ms or 0.0, ends - queue) if first is not None else 0.0
    prefill = min(record.prefill_ms or 0.0, ends - queue - handoff)
    between = ends - queue - handoff - prefill
    parts.append(("queue", queue))
    if prefill or handoff:
        parts += [("retries", between), ("prefill", prefill), ("handoff", handoff)]
    else:
        parts.append(("first_byte", between))
    parts.append(("decode", total - ends))
    found, start = [], 0.0
    for name, duration in parts:
        if duration > 0:
            found.append(Stage(name, start, duration))
            start += duration
    return found

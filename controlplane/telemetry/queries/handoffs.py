"""Where the time of a handoff goes, as far as engines tell. Reads only."""

from __future__ import annotations

from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.kv_results import HandoffSplit
from controlplane.telemetry.queries.reading import MODELS, POOLS, Ask, latency, read
from controlplane.telemetry.queries.shaping import Shape
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import Level, Window, one_cell

PARTS = latency("transfer_ms") | latency("queue_ms") | latency("prefill_ms")


def handoff_split(model: str, window: Window) -> HandoffSplit:
    """Means add up where percentiles do not. An engine's queue time begins when a request arrives and, while its KV is
    pulled, goes on; its prefill time is from its first step's beginning to its first token. Only where every request of the
    decode pool came by a handoff are its engines' queue and prefill times those of handoffs. Raises django.db.Error."""
    since, until = one_cell(window, Level.MINUTE)
    hours_until = stored().hours_until
    seen = read(Ask(MODELS, {"model": model}, (), latency("handoff_ms"), since, until), hours_until)
    told = read(Ask(POOLS, {"model": model, "role": "decode"}, (), PARTS, since, until), hours_until)
    whole = Shape(window, seen[0] if seen else None)
    engines = Shape(window, told[0] if told else None)
    handoff = whole.latency("handoff_ms").mean
    transfer = engines.latency("transfer_ms").mean
    queue, first_step = engines.latency("queue_ms").mean, engines.latency("prefill_ms").mean
    waited = _minus(queue.value, transfer.value)
    rest = _minus(handoff.value, transfer.value, waited, first_step.value)
    return HandoffSplit(
        model=model,
        handoff=handoff,
        transfer=transfer,
        decode_queue=_with(queue, waited),
        first_step=first_step,
        rest=_with(handoff, rest),
    )


def _minus(value: float | None, *parts: float | None) -> float | None:
    """What is left, at least 0; None when anything is not known."""
    if value is None or None in parts:
        return None
    return max(value - sum(part for part in parts if part is not None), 0.0)


def _with(figure: Figure, value: float | None) -> Figure:
    return Figure(value, figures.MS, figure.window_s, figure.count, figure.at, figure.stale)

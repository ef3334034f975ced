"""Reads from a prefill engine how many leases it has let expire: the proof that a late answer was made from the right KV."""

from __future__ import annotations

import re

from controlplane.router import legs
from controlplane.router.engines import Engine
from controlplane.router.limits import Limits
from controlplane.router.upstream import Fault

_SAMPLE = re.compile(rb"^vllm:nixl_num_kv_expired_reqs_total(?:\{[^\n]*\})?[ \t]+([^\s]+)", re.MULTILINE)


async def read(engine: Engine, limits: Limits) -> float | None:
    """The counter's value, or None if it cannot be read. Never raises for what an engine does."""
    collector = legs.Collector(limits.metrics_bytes)
    outcome = await legs.run(engine.pool, engine.get(b"/metrics"), collector, limits.metrics_s, limits)
    if isinstance(outcome, Fault) or outcome.status != 200:
        return None
    return parse(outcome.body)


def parse(page: bytes) -> float | None:
    """The sum of the counter over all its labels on a Prometheus page; None without a readable sample."""
    try:
        values = [float(value) for value in _SAMPLE.findall(page)]
    except ValueError:
        return None
    return sum(values) if values else None

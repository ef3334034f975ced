"""What a model was like over a span of time: its clients' latencies, what it served, and which GPUs worked for it. Reads
only.

Whole minutes alone count, and only those that were recorded: figures are of them, and how many are missing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from controlplane.core.sketches import Sketch, merged
from controlplane.fleet.models import Engine, Gpu
from controlplane.telemetry.tables import moment

MINUTE_S = 60


@dataclass(frozen=True)
class Span:
    """`minutes` were asked for; `request_minutes` and `gpu_minutes` of them have rows of requests and of GPUs. `tokens`:
    prompts and answers of requests that ended well. `busy_gpu_s` None: no GPU told its activity. `gpu_s`: seconds by kind
    of GPU; kind "" for one that is not known (any more)."""

    minutes: int
    request_minutes: int = 0
    gpu_minutes: int = 0
    requests: int = 0
    tokens: int = 0
    ttft_ms: Sketch = field(default_factory=Sketch)
    itl_ms: Sketch = field(default_factory=Sketch)
    busy_gpu_s: float | None = None
    gpu_s: Mapping[str, float] = field(default_factory=dict)


REQUESTS = """
SELECT ok, prompt_tokens + output_tokens, ttft_ms, itl_ms FROM telemetry_model_minute
WHERE model = %s AND at >= %s AND at < %s AND ok + client_error + engine_error + cancelled + cut > 0
"""
GPUS = """
SELECT uuid, sum(samples), sum(samples * busy) FROM telemetry_gpu_minute
WHERE engine = ANY(%s) AND at >= %s AND at < %s GROUP BY uuid
"""
GPU_MINUTES = """
SELECT count(DISTINCT at) FROM telemetry_gpu_minute WHERE engine = ANY(%s) AND at >= %s AND at < %s
"""


def model_span(model: str, since: float, until: float) -> Span:
    """The whole minutes between two Unix times. Raises database errors."""
    first, last = math.ceil(since / MINUTE_S), math.floor(until / MINUTE_S)
    between: list[Any] = [moment(first * MINUTE_S), moment(last * MINUTE_S)]
    engines = list(Engine.objects.filter(model__name=model).values_list("id", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(REQUESTS, [model, *between])
        rows = cursor.fetchall()
        cursor.execute(GPUS, [engines, *between])
        gpus = cursor.fetchall()
        cursor.execute(GPU_MINUTES, [engines, *between])
        (gpu_minutes,) = cursor.fetchone()
    busy = [value for _, _, value in gpus if value is not None]
    return Span(
        minutes=max(0, last - first),
        request_minutes=len(rows),
        gpu_minutes=gpu_minutes,
        requests=sum(ok for ok, *_ in rows),
        tokens=sum(int(tokens) for _, tokens, *_ in rows),
        ttft_ms=_all(ttft for _, _, ttft, _ in rows),
        itl_ms=_all(itl for _, _, _, itl in rows),
        busy_gpu_s=sum(busy) if busy else None,
        gpu_s=_by_kind({uuid: float(seconds) for uuid, seconds, _ in gpus}),
    )


def _all(stored: Iterable[Any]) -> Sketch:
    return merged(Sketch.from_bytes(bytes(each)) for each in stored if each is not None)


def _by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    kinds = dict(Gpu.objects.filter(uuid__in=seconds).values_list("uuid", "kind"))
    found: dict[str, float] = {}
    for uuid, value in seconds.items():
        found[kinds.get(uuid, "")] = found.get(kinds.get(uuid, ""), 0.0) + value
    return found

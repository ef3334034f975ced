"""An operation as somebody follows it: its rows, and what the live topic tells of the engines it changes. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import redis
from django.conf import settings

from controlplane.core import names
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models

EVERY_S = 0.25


@dataclass(frozen=True)
class Seen:
    """`in_flight`: requests on engines that steps name, by engine; `lost`: of the model's requests since it began, those
    that Twinpool lost or failed. None or missing: not known, or telemetry does not run."""

    operation: models.Operation
    subject: str
    """What it changes: the model's name, or "node:n1"."""
    steps: tuple[models.Step, ...]
    labels: dict[str, str]
    in_flight: dict[str, int]
    requests: int | None = None
    lost: int | None = None

    @property
    def over(self) -> bool:
        return self.operation.state in ENDED

    @property
    def done(self) -> int:
        return sum(step.state in ("done", "skipped") for step in self.steps)


def look(number: int) -> Seen | None:
    """How the operation is now; None if there is none."""
    operation = models.Operation.objects.filter(pk=number).select_related("model").first()
    if operation is None:
        return None
    steps = tuple(operation.steps.all())
    rows = _live(number)
    traffic = next((row for row in rows if row.get("type") == "traffic"), {})
    engines = models.Engine.objects.filter(id__in={step.engine for step in steps if step.engine})
    return Seen(
        operation=operation,
        subject=operation.model.name if operation.model else _subject(operation),
        steps=steps,
        labels={row.id: row.label for row in engines},
        in_flight={row["id"].partition(":")[2]: _work(row) for row in rows if row.get("type") == "engine"},
        requests=traffic.get("requests"),
        lost=traffic.get("lost"),
    )


def _subject(operation: models.Operation) -> str:
    """As the audit names it: also of a model that is gone."""
    entry = operation.audit.order_by("pk").first()
    return entry.subject.removeprefix("model:") if entry else ""


def follow(number: int, timeout_s: float | None = None) -> Iterator[Seen]:
    """The operation until it has ended, or `timeout_s` has passed."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while (seen := look(number)) is not None:
        yield seen
        if seen.over or (deadline is not None and time.monotonic() >= deadline):
            return
        time.sleep(EVERY_S)


def _work(row: dict[str, Any]) -> int:
    return int(row.get("running") or 0) + int(row.get("waiting") or 0)


def _live(number: int) -> list[dict[str, Any]]:
    """The rows of the operation's live topic; none while telemetry or Valkey is away."""
    try:
        with redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=0.5, socket_connect_timeout=0.5) as valkey:
            raw = valkey.hget(names.live_key(f"operation:{number}"), "rows")
            rows = orjson.loads(raw) if isinstance(raw, bytes) else []
    except (redis.RedisError, orjson.JSONDecodeError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

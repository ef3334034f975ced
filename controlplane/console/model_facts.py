"""A model as the pages that change it need it: what is desired of it, its engines, and what is in the way."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.utils import timezone

from controlplane.core.canary import Guardrails
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models


def model_facts(model: models.Model) -> dict[str, Any]:
    """Plain values for a page's data block. `version` goes back with every change, so that an old page changes nothing.
    `running`: number of the operation that is under way; `last`: of the newest one the page has seen."""
    return {
        "name": model.name,
        "version": model.version,
        "mode": model.mode,
        "served_mode": model.served_mode,
        "team": model.team,
        "strict": model.strict,
        "connector": model.connector,
        "slo": {"ttft_ms": model.slo_ttft_ms, "itl_ms": model.slo_itl_ms},
        "thresholds": {
            "tokens": model.conditional_min_uncached_tokens,
            "ratio": model.conditional_min_uncached_ratio,
        },
        "frozen": _frozen(model),
        "pools": [
            {
                "role": pool.role,
                "desired": pool.desired_engines,
                "floor": pool.floor,
                "tensor_parallel": pool.tensor_parallel,
            }
            for pool in model.pools.filter(arm=models.MAIN)
        ],
        "engines": _engines(model),
        "running": model.operations.exclude(state__in=ENDED).values_list("pk", flat=True).first(),
        "last": models.Operation.objects.values_list("pk", flat=True).first() or 0,
        "canary": _canary(model),
    }


def _frozen(model: models.Model) -> dict[str, Any] | None:
    if model.frozen_until is None or model.frozen_until <= timezone.now():
        return None
    return {"until": model.frozen_until.timestamp(), "reason": model.frozen_reason}


def _engines(model: models.Model) -> list[dict[str, Any]]:
    """Those of the main arm that are wanted, as pools count them: one that is on its way belongs to the pool it goes to."""
    rows = models.Engine.objects.filter(model=model, wanted=True)
    return [
        {"id": row.id, "label": row.label, "number": row.number, "role": row.next_role or row.role, "state": row.state}
        for row in rows
        if (row.next_arm or row.arm) == models.MAIN
    ]


def _canary(model: models.Model) -> dict[str, Any] | None:
    """The one that runs, with what it has shown so far."""
    canary = model.canaries.filter(ended_at=None).first()
    if canary is None:
        return None
    return {
        "mode": canary.mode,
        "share": canary.share,
        "steps": canary.steps,
        "shared": canary.shared,
        "paused": canary.paused,
        "started_at": canary.started_at.timestamp(),
        "step_since": canary.step_since.timestamp(),
        "verdict": canary.verdict,
        "guardrails": {**asdict(Guardrails()), **canary.guardrails},
    }

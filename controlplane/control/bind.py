"""Ties the engines that the loop chose to the steps of operations that wait for one."""

from __future__ import annotations

from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models


def bind_step(model_id: int, verb: str, role: str, arm: str, engine: str) -> None:
    """The oldest open step that waits for an engine like this one gets it, unless one has it already: a move is bound when
    it begins, and asked for again when it ends."""
    steps = models.Step.objects.filter(operation__model_id=model_id, verb=verb, role=role, arm=arm)
    steps = steps.exclude(operation__state__in=ENDED)
    if steps.filter(engine=engine).exists():
        return
    step = steps.filter(engine="", state="waiting").order_by("operation_id", "index").first()
    if step is not None:
        models.Step.objects.filter(pk=step.pk, engine="").update(engine=engine)

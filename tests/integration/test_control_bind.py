"""Which step of an operation gets which engine."""

from __future__ import annotations

import pytest

from controlplane.control.bind import bind_step
from controlplane.fleet import models

pytestmark = pytest.mark.django_db


def test_an_engine_gets_one_step_however_often_it_is_bound() -> None:
    model = models.Model.objects.create(name="m", source="m", config={}, engine_kind="simulated")
    operation = models.Operation.objects.create(verb="rebalance", model=model, actor="ann", state="running")
    for index in range(2):
        models.Step.objects.create(operation=operation, index=index, verb="retask", role="prefill")

    def bound() -> list[str]:
        return list(operation.steps.order_by("index").values_list("engine", flat=True))

    for _ in range(2):
        bind_step(model.pk, "retask", "prefill", models.MAIN, "e-1")
    assert bound() == ["e-1", ""]
    models.Step.objects.filter(engine="e-1").update(state="done")
    bind_step(model.pk, "retask", "prefill", models.MAIN, "e-1")
    bind_step(model.pk, "retask", "prefill", models.MAIN, "e-2")
    assert bound() == ["e-1", "e-2"]

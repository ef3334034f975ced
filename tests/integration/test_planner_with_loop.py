"""A proposal from the look to the changed pools, on real PostgreSQL, Valkey and broker, against fake nodes."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import redis
from django.db.models import F

from controlplane.control.models import Level, Proposal
from controlplane.control.planning import tick
from controlplane.control.seed import seed
from controlplane.core.scenes import SCENES
from controlplane.fleet import models
from controlplane.telemetry.tables import moment
from tests.integration.control_kit import FakeFleet, new_loop
from tests.integration.planner_rows import planned, traffic

pytestmark = pytest.mark.django_db(transaction=True)

LLAMA = "llama-3.1-70b"


def test_the_planner_moves_engines_by_itself_and_keeps_what_became_of_it(valkey: redis.Redis, valkey_url: str) -> None:
    fake, loop = FakeFleet(valkey_url), new_loop()
    seed(SCENES["demo"], "")

    def until(what: str, check: Any) -> Any:
        def once() -> Any:
            models.Pair.objects.filter(state="asked").update(attempts=F("attempts") + 1, state="verified")
            return check()

        return fake.run(loop, what, once)

    until("all are up", lambda: len(fake.listed(LLAMA)) == 4)
    until("nothing runs", lambda: not models.Operation.objects.exclude(state="done").exists())
    model = models.Model.objects.get(name=LLAMA)
    now = time.time()
    models.Operation.objects.update(created_at=moment(now - 7200), finished_at=moment(now - 7200))
    for other in models.Model.objects.exclude(pk=model.pk):
        planned(other, Level.OFF)
    planned(model, Level.AUTOMATIC, guards={"give_up": False, "moves_per_hour": 20})
    traffic(now, 1.4, model=LLAMA, prompt=16_000, output=60, ttft_ms=60_000.0)
    decision = tick.look(now)
    row = Proposal.objects.filter(model=model).first()
    assert row is not None, decision.holds
    assert row.state == "approved", row.hindrance

    def settled() -> bool:
        tick.outcomes.settle()
        row.refresh_from_db()
        return row.state != "approved"

    until("carried out", settled)
    assert row.state == "executed", row.hindrance
    table = fake.table()
    assert table is not None
    roles = Counter(e.role for m in table.models if m.name == LLAMA for e in m.engines if e.state == "ready")
    assert dict(roles) == row.sizes
    fake.close()

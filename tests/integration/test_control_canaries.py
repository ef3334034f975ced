"""From what routers tell of a canary's sessions to its verdict, on real PostgreSQL and Valkey: counted and acted on once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis
from django.db import OperationalError

from controlplane.config import config
from controlplane.control import actions, canaries, canary_reports
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import CanaryReport, SessionSeen
from controlplane.core.signing import router_key, seal
from controlplane.core.trial import Evidence
from controlplane.fleet import models
from tests.integration.control_kit import ANN

pytestmark = pytest.mark.django_db

LIMITS = {"min_sessions": 20, "min_step_s": 0, "session_s": 0, "settle_s": 0, "margin": 0.2}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are not waited for."""
    monkeypatch.setattr(canary_reports, "LATE_S", 0.0)


@pytest.fixture
def canary(valkey: redis.Redis) -> models.Canary:
    """Of mode disaggregated on half of the sessions of a conditional model, on shared engines."""
    model = models.Model.objects.create(name="m", source="org/m", config={}, mode="conditional", served_mode="conditional")
    for number, role in enumerate(("prefill", "decode"), 1):
        models.Pool.objects.create(model=model, role=role, desired_engines=1)
        models.Engine.objects.create(
            id=f"e-{number}", model=model, role=role, number=number, kind="simulated", state="ready"
        )
    actions.set_canary(ANN, "m", "disaggregated", shared=True, share=0.5, steps=[0.75], guardrails=LIMITS)
    listed(0.5)
    return models.Canary.objects.get()


def listed(share: float | None) -> None:
    """The routing table has the canary with this share; None: it has not."""
    trial = None if share is None else {"arm": "canary", "share": share}
    models.TableState.objects.update_or_create(id=1, defaults={"document": {"models": [{"name": "m", "canary": trial}]}})


def session(key: int, *, canary: bool | None = None, at: float | None = None, **fields: Any) -> SessionSeen:
    mine = key % 2 == 0 if canary is None else canary
    return SessionSeen(f"{key:016x}", mine, time.time() if at is None else at, **fields)


def tell(valkey: redis.Redis, canary: models.Canary, sessions: Iterable[SessionSeen], key: bytes | None = None) -> None:
    envelope = seal(key or router_key(config().fleet_secret()), encode(CanaryReport(canary.pk, "r1", tuple(sessions))))
    valkey.xadd(names.canary_stream(canary.pk), {"r": envelope})


def tick(valkey: redis.Redis, canary: models.Canary) -> models.Canary:
    canaries.advance_canaries(valkey, router_key(config().fleet_secret()), {})
    canary.refresh_from_db()
    return canary


def found(canary: models.Canary) -> Evidence:
    return canaries.read_sampling(canary).evidence


def counted(canary: models.Canary) -> tuple[int, int]:
    return found(canary).canary.sessions, found(canary).main.sessions


def begun(valkey: redis.Redis, canary: models.Canary) -> models.Canary:
    """Sampling has begun."""
    return tick(valkey, canary)


def test_a_session_counts_once_however_often_it_is_told_of(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(1), session(2, over=True)])
    tell(valkey, canary, [session(1), session(2)])  # another router, or the same report again
    assert counted(tick(valkey, canary)) == (1, 1)
    assert found(canary).canary.over == 1
    tell(valkey, canary, [session(1, over=True), session(2, failed=True), session(4)])  # too late for the first two
    assert counted(tick(valkey, canary)) == (2, 1)
    assert (found(canary).main.over, found(canary).canary.failed) == (0, 0)
    assert counted(tick(valkey, canary)) == (2, 1)


def test_a_session_is_what_its_first_arm_saw_until_its_time_is_up(
    valkey: redis.Redis, canary: models.Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(valkey, canary)
    monkeypatch.setattr(canary_reports, "LATE_S", 3600.0)
    tell(valkey, canary, [session(1, ttft_ms=5.0), session(2)])
    tick(valkey, canary)
    tell(
        valkey, canary, [session(1, over=True, ttft_ms=9.0), session(2, canary=False, failed=True), session(1, canary=True)]
    )
    assert counted(tick(valkey, canary)) == (0, 0)
    monkeypatch.setattr(canary_reports, "LATE_S", 0.0)
    assert counted(tick(valkey, canary)) == (1, 1)
    assert (found(canary).main.over, found(canary).canary.failed) == (1, 0)
    assert found(canary).main.ttft_ms.p99 == pytest.approx(9.0, rel=0.02)


def test_what_is_not_signed_or_not_plausible_counts_nothing(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(1)], key=b"x" * 32)
    tell(valkey, canary, [replace(session(1), session="no hash"), session(3, ttft_ms=-1.0)])
    other = models.Canary(pk=canary.pk + 1)
    key = router_key(config().fleet_secret())
    valkey.xadd(names.canary_stream(canary.pk), {"r": seal(key, encode(CanaryReport(other.pk, "r1", (session(5),))))})
    valkey.xadd(names.canary_stream(canary.pk), {"x": b"nonsense"})
    assert counted(tick(valkey, canary)) == (0, 0)
    tell(valkey, canary, [session(7)])
    assert counted(tick(valkey, canary)) == (0, 1)


def test_a_good_canary_goes_up_step_by_step_by_itself(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(key) for key in range(200)])
    tick(valkey, canary)
    assert (canary.state, canary.share, canary.steps) == ("running", 0.75, [])
    step = models.Operation.objects.latest("pk")
    assert (step.verb, step.actor, step.state) == ("promote_canary", "canary", "done")
    assert step.reason.startswith("Promoted: 0 of 100 (0.0%) of the canary's sessions and 0 of 100 (0.0%) of main's were")
    listed(0.75)
    tick(valkey, canary)  # the new step
    assert (canary.verdict["because"], len(found(canary).steps)) == ("sessions", 2)
    tell(valkey, canary, [session(key, canary=key % 4 > 0) for key in range(1000, 1400)])
    tick(valkey, canary)
    assert canary.state == "promoted" and canary.ended_at
    assert canary.verdict["action"] == "promote" and canary.verdict["numbers"]["difference"]["upper"] <= 0.2
    model = models.Model.objects.get()
    assert model.mode == "disaggregated"
    assert models.AuditEntry.objects.latest("pk").actor == "canary"
    tick(valkey, canary)
    assert not models.CanarySession.objects.exists()
    assert not valkey.exists(names.canary_stream(canary.pk))


def test_a_bad_canary_is_rolled_back_by_itself(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(key, over=key % 2 == 0) for key in range(40)])
    tick(valkey, canary)
    assert canary.state == "rolled_back" and canary.ended_at
    sentence = "Rolled back: 20 of 20 (100.0%) of the canary's sessions and 0 of 20 (0.0%) of main's were over the SLO;"
    assert canary.reason == canary.verdict["sentence"] == f"{sentence} the canary is worse."
    assert canary.verdict["numbers"]["harm"]["over"] >= 1
    assert models.Model.objects.get().mode == "conditional"
    end = models.Operation.objects.latest("pk")
    assert (end.verb, end.actor, end.reason) == ("end_canary", "canary", canary.reason)
    count = models.Operation.objects.count()
    tick(valkey, canary)
    assert models.Operation.objects.count() == count


def test_sampling_pauses_while_another_operation_runs(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(1), session(2)])
    assert counted(tick(valkey, canary)) == (1, 1)
    assert not models.Canary.objects.get().paused
    other = models.Operation.objects.create(verb="rebalance", model=canary.model, actor="ann", state="running")
    meanwhile = time.time()
    tell(valkey, canary, [session(3, over=True), session(4, over=True)])
    assert counted(tick(valkey, canary)) == (1, 1)
    assert models.Canary.objects.get().paused
    models.Operation.objects.filter(pk=other.pk).update(state="done")
    assert not tick(valkey, canary).paused
    tell(valkey, canary, [session(5, at=meanwhile, over=True), session(6), session(8)])  # the first began in between
    assert counted(tick(valkey, canary)) == (3, 1)
    assert found(canary).main.over == 0


def test_sessions_that_were_disturbed_before_they_counted_count_not(
    valkey: redis.Redis, canary: models.Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(valkey, canary)
    monkeypatch.setattr(canary_reports, "LATE_S", 3600.0)
    tell(valkey, canary, [session(1, over=True)])
    tick(valkey, canary)
    assert models.CanarySession.objects.count() == 1
    other = models.Operation.objects.create(verb="rebalance", model=canary.model, actor="ann", state="running")
    tick(valkey, canary)
    assert not models.CanarySession.objects.exists()
    models.Operation.objects.filter(pk=other.pk).update(state="cancelled")
    monkeypatch.setattr(canary_reports, "LATE_S", 0.0)
    tick(valkey, canary)
    tell(valkey, canary, [session(1)])
    assert counted(tick(valkey, canary)) == (0, 1)


def test_while_caches_settle_nothing_counts(valkey: redis.Redis, canary: models.Canary) -> None:
    models.Canary.objects.update(guardrails=LIMITS | {"settle_s": 300})
    begun(valkey, canary)
    tell(valkey, canary, [session(1), session(3, at=time.time() + 301)])
    assert counted(tick(valkey, canary)) == (0, 1)


def test_a_step_by_hand_is_a_new_step_for_the_verdict(valkey: redis.Redis, canary: models.Canary) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(key) for key in range(10)])
    assert counted(tick(valkey, canary)) == (5, 5)
    actions.promote_canary(ANN, "m")
    tick(valkey, canary)
    evidence = found(canary)
    assert (evidence.canary.sessions, evidence.step_canary, len(evidence.steps)) == (5, 0, 2)


def test_a_tick_that_dies_leaves_all_or_nothing(
    valkey: redis.Redis, canary: models.Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(valkey, canary)
    tell(valkey, canary, [session(key, over=key % 2 == 0) for key in range(40)])

    def die(*_: Any) -> Any:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patched:
        patched.setattr(canaries, "_keep", die)  # in the middle of its transaction
        with pytest.raises(OperationalError):
            tick(valkey, canary)
    canary.refresh_from_db()
    assert counted(canary) == (0, 0) and not models.CanarySession.objects.exists()
    with monkeypatch.context() as patched:
        patched.setattr(canaries, "_act", die)  # after it, before it could act
        with pytest.raises(OperationalError):
            tick(valkey, canary)
    canary.refresh_from_db()
    assert counted(canary) == (20, 20) and canary.state == "running"
    assert tick(valkey, canary).state == "rolled_back"
    assert counted(canary) == (20, 20)
    assert models.Operation.objects.filter(verb="end_canary").count() == 1


def test_a_canary_that_routers_do_not_know_is_not_waited_for_for_ever(valkey: redis.Redis, canary: models.Canary) -> None:
    models.Canary.objects.update(guardrails=LIMITS | {"max_absent_s": 0})
    listed(None)
    assert tick(valkey, canary).state == "running"
    listed(0.5)
    assert tick(valkey, canary).state == "running", "it came back"
    listed(None)
    tick(valkey, canary)
    assert tick(valkey, canary).state == "rolled_back"
    assert "had no ready engine" in canary.reason


def test_a_spoilt_row_is_said_and_holds_nobody_up(
    valkey: redis.Redis, canary: models.Canary, caplog: pytest.LogCaptureFixture
) -> None:
    models.Canary.objects.update(evidence={"position": 7})
    said: dict[str, str] = {}
    for _ in range(2):
        canaries.advance_canaries(valkey, router_key(config().fleet_secret()), said)
    assert caplog.text.count("its row cannot be read, end it: position: expected str, got int") == 1
    actions.end_canary(ANN, "m")
    canaries.advance_canaries(valkey, router_key(config().fleet_secret()), said)


def test_a_frozen_model_is_rolled_back_but_not_promoted(
    valkey: redis.Redis, canary: models.Canary, caplog: pytest.LogCaptureFixture
) -> None:
    begun(valkey, canary)
    models.Model.objects.update(frozen_until="2999-01-01T00:00:00Z", frozen_reason="audit week")
    tell(valkey, canary, [session(key) for key in range(200)])
    assert tick(valkey, canary).share == 0.5
    assert canary.verdict["action"] == "promote" and "is frozen until" in caplog.text
    tell(valkey, canary, [session(key, failed=True, over=True) for key in range(1000, 1100, 2)])
    tell(valkey, canary, [session(key) for key in range(1001, 1101, 2)])
    assert tick(valkey, canary).state == "rolled_back"

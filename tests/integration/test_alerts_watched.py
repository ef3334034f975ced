"""What rules see in rows and telemetry, and what becomes of it: alerts, and messages that arrive at least once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.alerts.models import Alert, Channel, Notification, RuleSetting, Silence
from controlplane.alerts.webhook import sign
from controlplane.config import config
from controlplane.control import tasks
from controlplane.control.alerting.deliver import Notifier, deliver_due
from controlplane.control.alerting.observe_metrics import IDLE_S
from controlplane.control.alerting.watch import Watcher, look, observe
from controlplane.control.leases import lease
from controlplane.control.models import Lease
from controlplane.core import names
from controlplane.core.protocol import GpuRow, RouterRow
from controlplane.core.signing import webhook_key
from controlplane.fleet import models
from controlplane.telemetry import fleet_view, live_rows
from controlplane.telemetry.board import Board
from controlplane.telemetry.rows import ProposalsRow
from controlplane.telemetry.testing import engine_row, request_row
from tests.integration.alert_kit import Hooks, hooks, mailbox
from tests.integration.control_kit import until
from tests.integration.queries_kit import NOON, Recorder, engine, fleet

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def model() -> models.Model:
    """A model with two prefill and two decode engines that serve, and a node that was never silent."""
    row = models.Model.objects.create(
        name="llama", source="x", config={}, engine_kind="simulated", mode="disaggregated", slo_ttft_ms=1000, slo_itl_ms=50
    )
    node = models.Node.objects.create(name="n1", seen_at=datetime(2100, 1, 1, tzinfo=UTC))
    for number, (role, id) in enumerate([("prefill", "p1"), ("prefill", "p2"), ("decode", "d1"), ("decode", "d2")], 1):
        models.Pool.objects.get_or_create(model=row, role=role, defaults={"desired_engines": 2})
        models.Engine.objects.create(id=id, model=row, role=role, number=number, kind="simulated", state="ready")
    assert node.pk
    return row


def seen(rule: str, now: float = NOON, *, ticks: bool = True) -> dict[str, float | None]:
    """What a rule sees, by subject."""
    looks = observe(now, ticks)[rule]
    assert looks is not None
    return {each.subject: each.value for each in looks}


def watch(*times: float) -> list[tuple[str, str]]:
    return [(move.rule, move.kind) for at in times for move in look(at, True) if move.kind in ("fire", "resolve")]


def record(traffic: Any, minutes: int = 5) -> None:
    """That many minutes until NOON, second by second."""
    view = fleet(engine("p1", "prefill"), engine("p2", "prefill"), engine("d1", "decode"), engine("d2", "decode"))
    recorder = Recorder(view)
    begin = NOON - minutes * 60
    for second in range(minutes * 60):
        at = begin + second + 0.5
        recorder.take(at, "router", RouterRow("r1", 0, 0, 0, 0, 0))
        traffic(recorder, at, second)
    recorder.write(NOON + 5)


def test_a_pool_without_an_engine_that_takes_work_is_seen(model: models.Model) -> None:
    assert seen("pool_empty") == {"pool:llama/prefill": 2.0, "pool:llama/decode": 2.0}
    models.Engine.objects.filter(id="d1").update(state="failed")
    models.Engine.objects.filter(id="d2").update(held=True)
    assert seen("pool_empty")["pool:llama/decode"] == 0.0
    assert watch(NOON, NOON + 10, NOON + 20) == [("pool_empty", "fire")]
    alert = Alert.objects.get(state="firing")
    assert (alert.subject, alert.model, alert.severity, alert.value) == ("pool:llama/decode", "llama", "bad", 0.0)
    models.Engine.objects.filter(id="d2").update(held=False)
    assert watch(NOON + 30, NOON + 50, NOON + 60) == [("pool_empty", "resolve")]
    alert.refresh_from_db()
    assert (alert.state, alert.value, alert.peak, alert.reason) == ("resolved", 1.0, 0.0, "good again")


def test_a_pool_whose_first_engines_are_on_their_way_is_not_judged(model: models.Model) -> None:
    models.Engine.objects.update(state="starting")
    assert set(seen("pool_empty").values()) == {None}
    models.Engine.objects.update(failures=1)
    assert set(seen("pool_empty").values()) == {0.0}


def test_a_pool_that_needs_no_engine_and_a_model_that_retires_are_no_subjects(model: models.Model) -> None:
    models.Pool.objects.filter(role="prefill").update(desired_engines=0)
    assert list(seen("pool_empty")) == ["pool:llama/decode"]
    models.Model.objects.update(retiring=True)
    assert seen("pool_empty") == {}


def test_silent_nodes_are_seen_only_while_control_hears(model: models.Model) -> None:
    models.Node.objects.create(name="never-joined")
    models.Node.objects.filter(name="n1").update(seen_at=datetime.fromtimestamp(NOON, UTC))
    assert seen("node_lost", NOON + 40) == {"node:n1": 40.0}
    assert seen("node_lost", NOON + 40, ticks=False) == {"node:n1": None}
    assert watch(NOON + 40) == [("node_lost", "fire")]
    look(NOON + 50, False)
    models.Node.objects.filter(name="n1").delete()
    assert watch(NOON + 60) == [("node_lost", "resolve")]
    assert Alert.objects.get().reason == "what it is about is no more"


def test_an_engine_that_fails_or_starts_again_and_again_is_seen(model: models.Model) -> None:
    models.Engine.objects.filter(id="p1").update(failures=3, reason="CUDA out of memory")
    for number in range(1, 5):
        ago = timezone.now() - timedelta(minutes=number)
        models.Incarnation.objects.create(engine_id="d1", number=number, started_at=ago)
    assert seen("crash_loop") == {"engine:p1": 3.0, "engine:p2": 0.0, "engine:d1": 3.0, "engine:d2": 0.0}
    look(NOON, True)
    crash = Alert.objects.get(subject="engine:p1")
    assert crash.state == "firing" and crash.label == "P1 of llama" and "CUDA" in crash.facts["reason"]


def test_a_budget_that_burns_is_seen_over_both_windows(model: models.Model) -> None:
    def half_is_slow(recorder: Recorder, at: float, second: int) -> None:
        row = request_row(f"r{at}", "llama", at - 1, ttft_ms=1500.0 if second % 2 else 200.0, stream=True, itl_ms=(10.0,))
        recorder.take(at, "request", row)

    record(half_is_slow)
    value = seen("slo_burn_fast")["model:llama"]
    assert value == pytest.approx(50.0, rel=0.02)
    assert watch(NOON) == [("slo_burn_fast", "fire"), ("slo_burn_slow", "fire")]
    assert Alert.objects.get(rule="slo_burn_fast").facts["of"] == "ttft"
    assert seen("slo_burn_fast", NOON + 3600)["model:llama"] is None, "nothing was recorded since: not known, not good"


def test_requests_that_we_lost_burn_the_budget_too_and_clients_errors_do_not(model: models.Model) -> None:
    def some_fail(recorder: Recorder, at: float, second: int) -> None:
        outcome = {0: "cut", 1: "client_error"}.get(second % 10, "ok")
        ttft = None if second % 10 < 2 else 100.0
        recorder.take(at, "request", request_row(f"r{at}", "llama", at - 1, outcome=outcome, ttft_ms=ttft, itl_ms=()))

    record(some_fail)
    assert seen("slo_burn_fast")["model:llama"] == pytest.approx(100 / 9, rel=0.02)


def test_gaps_between_tokens_burn_it_as_well(model: models.Model) -> None:
    def slow_tokens(recorder: Recorder, at: float, second: int) -> None:
        gaps = (10.0,) * 8 + (90.0,) * 2
        recorder.take(at, "request", request_row(f"r{at}", "llama", at - 1, ttft_ms=100.0, itl_ms=gaps))

    record(slow_tokens)
    assert seen("slo_burn_fast")["model:llama"] == pytest.approx(20.0, rel=0.02)


def test_without_records_nothing_is_known_of_traffic(model: models.Model) -> None:
    rules = ("slo_burn_fast", "slo_burn_slow", "transfer_p99", "transfer_failures", "pool_imbalance")
    assert {rule: seen(rule) for rule in rules} == {rule: {"model:llama": None} for rule in rules}
    assert seen("stale_metrics") == {"fleet": None}


def test_an_idle_model_is_fine(model: models.Model) -> None:
    def nothing(recorder: Recorder, at: float, _: int) -> None:
        rows = [engine_row(id, "llama", running=0, waiting=0, kv_usage=0.0) for id in ("p1", "p2", "d1", "d2")]
        recorder.take(at, "engine", *rows)

    record(nothing)
    assert [seen(rule)["model:llama"] for rule in ("slo_burn_fast", "transfer_p99", "transfer_failures")] == [0.0] * 3
    assert set(seen("stranded_kv").values()) == {0.0} and set(seen("engine_imbalance").values()) == {1.0}
    assert watch(NOON) == []


def test_transfers_that_fail_or_expire_are_seen(model: models.Model) -> None:
    def some_fail(recorder: Recorder, at: float, second: int) -> None:
        decode = {"transfers": second * 9, "transfers_failed": second // 2, "transfer_bytes": second * 1e6}
        recorder.take(
            at,
            "engine",
            engine_row("p1", "llama", counters={"leases_expired": second // 2}),
            engine_row("d1", "llama", counters=decode),
        )

    record(some_fail)
    assert seen("transfer_failures")["model:llama"] == pytest.approx(0.1, rel=0.02)


def test_kv_that_an_idle_engine_holds_is_stranded_and_of_a_busy_one_nothing_is_known(model: models.Model) -> None:
    def held(recorder: Recorder, at: float, _: int) -> None:
        recorder.take(
            at,
            "engine",
            engine_row("p1", "llama", running=0, waiting=0, kv_usage=0.3),
            engine_row("p2", "llama", running=1, waiting=0, kv_usage=0.3),
        )

    record(held, 2)
    found = seen("stranded_kv")
    assert found["engine:p1"] == pytest.approx(0.3) and found["engine:p2"] is None and found["engine:d1"] is None
    assert seen("stranded_kv", NOON + 2 * IDLE_S)["engine:p1"] is None


def test_pools_and_engines_out_of_balance_are_seen(model: models.Model) -> None:
    def lopsided(recorder: Recorder, at: float, _: int) -> None:
        recorder.take(at, "gpu", GpuRow("g1", "p1", 0.9, 0.9, 0.2), GpuRow("g2", "d1", 0.1, 0.2, 0.1))
        loads = {"p1": 9, "p2": 1, "d1": 2, "d2": 2}
        recorder.take(at, "engine", *(engine_row(id, "llama", running=load, waiting=0) for id, load in loads.items()))

    record(lopsided)
    assert seen("pool_imbalance")["model:llama"] == pytest.approx(0.8, abs=0.01)
    assert seen("engine_imbalance") == {"pool:llama/prefill": pytest.approx(1.8), "pool:llama/decode": pytest.approx(1.0)}


def test_metrics_that_stop_are_stale_and_say_whose(model: models.Model) -> None:
    def gpus(recorder: Recorder, at: float, _: int) -> None:
        recorder.take(at, "gpu", GpuRow("g1", "p1", 0.9, 0.9, 0.2))

    record(gpus)
    fresh = seen("stale_metrics", NOON + 5)
    assert fresh.keys() == {"fleet", "routers", "node:n1"} and max(filter(None, fresh.values())) < 20
    late = seen("stale_metrics", NOON + 300)
    assert late == {"fleet": pytest.approx(295.0), "routers": None, "node:n1": None}, "one alert, not one for each node"


def test_settings_of_one_model_win_over_those_of_all_and_off_is_off(model: models.Model) -> None:
    models.Engine.objects.filter(id="d1").update(state="failed")
    RuleSetting.objects.create(rule="pool_empty", threshold=5, for_s=0)
    RuleSetting.objects.create(rule="pool_empty", model="llama", threshold=2)
    assert watch(NOON) == [("pool_empty", "fire")]
    assert Alert.objects.get().subject == "pool:llama/decode", "two are enough for prefill, by the model's own setting"
    RuleSetting.objects.filter(model="llama").update(enabled=False)
    assert watch(NOON + 40) == [("pool_empty", "resolve")]
    assert Alert.objects.get().reason == "the rule was switched off"


def test_what_is_resolved_is_kept_for_90_days(model: models.Model) -> None:
    models.Engine.objects.filter(role="decode").update(state="failed")
    watch(NOON, NOON + 30)
    Alert.objects.update(state="resolved", resolved_at=datetime.fromtimestamp(NOON, UTC))
    models.Engine.objects.update(state="ready")
    models.Node.objects.all().delete()
    look(NOON + 89 * 86_400, True)
    assert Alert.objects.exists()
    look(NOON + 91 * 86_400, True)
    assert not Alert.objects.exists()


# ---- telling ----


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooks]:
    """A receiver on this machine, whose network the setting allows."""
    monkeypatch.setenv("TWINPOOL_WEBHOOK_NETWORKS", "127.0.0.0/8")
    config.cache_clear()
    with hooks() as found:
        yield found
    config.cache_clear()


@pytest.fixture
def broken(model: models.Model) -> models.Model:
    """Its decode pool is empty."""
    models.Engine.objects.filter(role="decode").update(state="failed")
    return model


def webhook(hook: Hooks, name: str = "pager", **more: Any) -> Channel:
    return Channel.objects.create(name=name, kind="webhook", target=hook.url, **more)


def told(hook: Hooks) -> list[tuple[str, str]]:
    documents = [json.loads(got.body) for got in hook.received]
    return [(document["event"], document["text"]) for document in documents]


NOW = time.time()


def now_and(*later_s: float) -> list[float]:
    return [NOW + later for later in (0, *later_s)]


def test_a_channel_is_told_once_that_it_fires_and_once_that_it_is_over(broken: models.Model, hook: Hooks) -> None:
    webhook(hook)
    watch(*now_and(10, 20, 30))
    assert deliver_due("me") == 1
    watch(NOW + 40)
    assert deliver_due("me") == 0, "it was told"
    models.Engine.objects.update(state="ready")
    watch(NOW + 50, NOW + 60, NOW + 80)
    assert deliver_due("me") == 1
    line = "A pool has too few engines: llama decode"
    assert told(hook) == [
        ("fired", f"Critical: {line}: 0 engines (at least 1 engines)"),
        ("resolved", f"Resolved: {line}: 2 engines (at least 1 engines)"),
    ]
    alert = json.loads(hook.received[0].body)["alert"]
    assert alert["remedy"] and alert["subject"] == "pool:llama/decode" and alert["fired_at"].endswith("Z")
    assert hook.received[0].headers["webhook-id"] != hook.received[1].headers["webhook-id"]


def test_a_silence_keeps_it_quiet_and_its_end_does_not(broken: models.Model, hook: Hooks) -> None:
    webhook(hook)
    silence = Silence.objects.create(model="llama", reason="known", actor="ann", until=timezone.now() + timedelta(hours=1))
    watch(*now_and(10, 20, 30))
    assert Alert.objects.filter(state="firing").exists() and deliver_due("me") == 0
    Silence.objects.filter(pk=silence.pk).update(until=timezone.now())
    watch(NOW + 40)
    assert deliver_due("me") == 1


def test_what_nobody_was_told_of_ends_in_silence(broken: models.Model, hook: Hooks) -> None:
    webhook(hook)
    Silence.objects.create(rule="pool_empty", reason="known", actor="ann", until=timezone.now() + timedelta(hours=1))
    watch(*now_and(10, 20, 30))
    models.Engine.objects.update(state="ready")
    assert watch(NOW + 40, NOW + 60, NOW + 80) == [("pool_empty", "resolve")]
    assert not Notification.objects.exists()


def test_a_channel_for_critical_alerts_is_not_told_of_warnings(broken: models.Model, hook: Hooks) -> None:
    RuleSetting.objects.create(rule="pool_empty", severity="warn")
    webhook(hook, least="bad")
    webhook(hook, "off", enabled=False)
    watch(*now_and(10, 20, 30))
    assert not Notification.objects.exists()


def test_a_receiver_that_is_away_is_asked_again_later_and_the_others_are_told(broken: models.Model, hook: Hooks) -> None:
    with hooks() as down:
        webhook(down, "down")
    webhook(hook)
    watch(*now_and(10, 20, 30))
    assert deliver_due("me") == 1
    row = Notification.objects.get(channel__name="down")
    assert (row.state, row.attempts) == ("waiting", 1) and row.due_at > timezone.now()
    channel = Channel.objects.get(name="down")
    assert "ConnectionRefusedError" in channel.error and "s3cret" not in channel.error + row.error
    assert deliver_due("me") == 0, "not before it is due"
    Channel.objects.filter(name="down").update(target=hook.url)
    Notification.objects.filter(pk=row.pk).update(due_at=timezone.now())
    assert deliver_due("me") == 1
    assert {got.headers["webhook-id"] for got in hook.received} == set(
        map(str, Notification.objects.values_list("pk", flat=True))
    )


def test_the_end_is_not_told_before_the_beginning(broken: models.Model, hook: Hooks) -> None:
    webhook(hook)
    watch(*now_and(10, 20, 30))
    Notification.objects.update(due_at=timezone.now() + timedelta(hours=1))
    models.Engine.objects.update(state="ready")
    watch(NOW + 40, NOW + 60, NOW + 80)
    Notification.objects.filter(event="resolved").update(due_at=timezone.now())
    assert deliver_due("me") == 0
    Notification.objects.update(due_at=timezone.now())
    assert deliver_due("me") == 2
    assert [event for event, _ in told(hook)] == ["fired", "resolved"]


def test_after_so_many_attempts_a_message_is_given_up(broken: models.Model, hook: Hooks) -> None:
    hook.answer = lambda _: (500, {})
    webhook(hook)
    watch(*now_and(10, 20, 30))
    Notification.objects.update(attempts=29)
    assert deliver_due("me") == 0
    assert Notification.objects.get().state == "failed"


def test_whoever_is_killed_while_sending_has_it_sent_again_with_the_same_id(
    broken: models.Model, hook: Hooks, valkey: redis.Redis
) -> None:
    """The receiver has it, the process that sent it dies before it could note so."""
    webhook(hook)
    watch(*now_and(10, 20, 30))
    script = (
        "import django; django.setup()\nfrom controlplane.control.alerting.deliver import deliver_due\ndeliver_due('killed')"
    )
    sender: list[subprocess.Popen[bytes]] = []

    def kill(_: Any) -> tuple[int, dict[str, str]]:
        until("started", lambda: sender)
        os.kill(sender[0].pid, signal.SIGKILL)
        sender[0].wait()
        return 204, {}

    hook.answer = kill
    sender.append(subprocess.Popen([sys.executable, "-c", script], cwd=ROOT))
    until("killed", lambda: sender[0].poll() is not None)
    assert deliver_due("me") == 0, "the lease of the killed one still runs"
    Lease.objects.filter(name="notify").update(until=timezone.now() - timedelta(seconds=1))
    hook.answer = lambda _: (204, {})
    assert deliver_due("me") == 1
    first, again = hook.received
    assert first.headers["webhook-id"] == again.headers["webhook-id"] and first.body == again.body


def test_an_e_mail_channel_is_told_too(broken: models.Model, settings: Any) -> None:
    with mailbox() as box:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
        Channel.objects.create(name="post", kind="email", target="a@example.com,b@example.com")
        watch(*now_and(10, 20, 30))
        assert deliver_due("me") == 1
    (message,) = box.messages
    assert "llama decode" in message["subject"] and str(Notification.objects.get().pk) in message["message-id"]


def test_the_workers_beat_watches_and_tells(broken: models.Model, hook: Hooks, valkey: redis.Redis) -> None:
    """By the tasks that the beat asks for, in this process."""
    webhook(hook)
    RuleSetting.objects.create(rule="pool_empty", for_s=0)
    valkey.set(names.CONTROL_KEY, f"{time.time():.3f}")
    tasks.watch()
    until("told", lambda: hook.received)
    until("noted", lambda: Notification.objects.filter(state="sent"))
    signature = hook.received[0].headers["webhook-signature"]
    got = hook.received[0]
    key = webhook_key(config().fleet_secret(), Channel.objects.get().pk)
    assert signature == sign(key, got.headers["webhook-id"], int(got.headers["webhook-timestamp"]), got.body)


def test_a_second_watcher_leaves_it_to_the_first(broken: models.Model, valkey: redis.Redis) -> None:
    RuleSetting.objects.create(rule="pool_empty", for_s=0)
    with lease("alerts", "somebody", 60):
        Watcher().run()
        assert not Alert.objects.exists()
    Watcher().run()
    assert Alert.objects.filter(rule="pool_empty").count() == 1


def test_a_notifier_that_rests_is_woken_again(hook: Hooks, broken: models.Model) -> None:
    notifier = Notifier()
    notifier.start()
    until("rest", lambda: not notifier._running)
    webhook(hook)
    watch(*now_and(10, 20, 30))
    notifier.start()
    until("told", lambda: hook.received)
    until("rest", lambda: not notifier._running)


def test_what_fires_is_on_a_live_topic_with_who_silenced_it(broken: models.Model) -> None:
    def rows() -> list[Any]:
        view = fleet_view.read()
        found = live_rows.topics(Board(), view, NOW)["alerts"]
        assert json.loads(json.dumps([asdict(row) for row in found])), "as ingest publishes it"
        return [row for row in found if not isinstance(row, ProposalsRow)]

    assert [(row.id, row.firing) for row in rows()] == [("alerts", 0)]
    watch(*now_and(10, 20, 30))
    count, alert = rows()
    assert (count.firing, count.critical, count.silenced) == (1, 1, 0)
    assert (alert.rule, alert.subject, alert.silenced_until) == ("pool_empty", "pool:llama/decode", None)
    Silence.objects.create(model="llama", reason="known", actor="ann", until=timezone.now() + timedelta(hours=1))
    count, alert = rows()
    assert (count.firing, count.critical, count.silenced) == (0, 0, 1)
    assert (alert.silenced_by, alert.silenced_why) == ("ann", "known")

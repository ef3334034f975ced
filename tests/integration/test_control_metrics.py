"""What a control worker tells Prometheus, on real PostgreSQL and Valkey, against fake nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from controlplane.alerts.models import Alert
from controlplane.common.metrics import page, registry
from controlplane.control import actions
from controlplane.control.loop import Loop
from controlplane.control.metrics import control_series
from controlplane.control.seed import seed
from controlplane.core import names
from controlplane.core.scenes import SCENES
from tests.integration.alert_kit import firing
from tests.integration.control_kit import ANN, FakeFleet, new_loop
from tests.metrics_pages import Page

pytestmark = pytest.mark.django_db(transaction=True)
LLAMA = "llama-3.1-70b"


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[FakeFleet]:
    fleet = FakeFleet(valkey_url)
    yield fleet
    fleet.close()


def page_of(loop: Loop) -> Page:
    ages, refused = loop.reader.ages(time.monotonic()), loop.reader.refused
    return Page(page(registry(lambda: control_series(loop.counts, loop.ticked_s, ages, refused))))


def test_the_page_tells_ticks_facts_tables_and_engines(fleet: FakeFleet, valkey: redis.Redis) -> None:
    loop = new_loop()
    seed(SCENES["demo"], "")
    fleet.run(loop, "ready", lambda: len(fleet.listed(LLAMA)) == 4)
    fleet.run(loop, "acknowledged", lambda: page_of(loop).value("twinpool_control_router_current", router="r1") == 1)
    valkey.set(names.fact_key("router", "forged"), "nonsense")
    fleet.turn()
    loop.run()
    shown = page_of(loop)
    ticks = shown.value("twinpool_control_ticks_total", result="done")
    assert ticks == shown.value("twinpool_control_tick_seconds_count") > 0
    assert shown.value("twinpool_control_ticks_total", result="failed") == 0
    assert shown.value("twinpool_engines", model=LLAMA, role="prefill", arm="main", state="ready") == 2
    assert shown.value("twinpool_engines_desired", model=LLAMA, role="decode", arm="main") == 2
    assert shown.value("twinpool_nodes", state="ok") == 3
    table = fleet.table()
    assert table is not None
    assert shown.value("twinpool_control_table_generation") == table.generation
    assert shown.value("twinpool_control_router_generation", router="r1") == table.generation
    assert 0 <= shown.value("twinpool_control_fact_age_seconds", kind="agent", name="n1") < 60
    assert shown.value("twinpool_control_facts_refused") == 1
    assert shown.value("twinpool_gpus_held") + shown.value("twinpool_gpus_spare") == 24


def test_operations_are_counted_by_how_they_ended_whoever_ended_them(fleet: FakeFleet) -> None:
    loop = new_loop()
    seed(SCENES["demo"], "")
    fleet.run(loop, "ready", lambda: len(fleet.listed(LLAMA)) == 4)
    before = page_of(loop)
    operation = actions.scale_pool(ANN, LLAMA, "decode", 3, reason="more")
    assert page_of(loop).value("twinpool_operations_open", verb=operation.verb, state="pending") == 1
    fleet.run(loop, "done", lambda: page_of(loop).total("twinpool_operations_open") == 0)
    done = {"verb": operation.verb, "state": "done"}
    assert page_of(loop).value("twinpool_operations_ended_total", **done) == 1 + before.get(
        "twinpool_operations_ended_total", **done
    )


def test_alerts_are_counted_until_they_are_over(fleet: FakeFleet) -> None:
    alert = firing()
    labels = {"rule": alert.rule, "severity": alert.severity, "state": alert.state}
    assert page_of(new_loop()).value("twinpool_alerts_open", **labels) == 1
    Alert.objects.update(state="resolved")
    assert page_of(new_loop()).total("twinpool_alerts_open") == 0


def test_a_tick_without_valkey_is_counted_as_failed(fleet: FakeFleet) -> None:
    loop = new_loop()
    loop.valkey = redis.Redis.from_url("redis://127.0.0.1:1/0")
    loop.run()
    assert page_of(loop).value("twinpool_control_ticks_total", result="failed") == 1

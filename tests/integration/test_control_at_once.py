"""Two operators at once, two loops at once, and every message twice: one change wins, and everything is done once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import redis
from django.db import connections

from controlplane.control import actions, commands
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused
from controlplane.control.seed import seed
from controlplane.core.lifecycle import ENDED
from controlplane.core.scenes import SCENES
from controlplane.fleet import models
from tests.integration.control_kit import FakeFleet, new_loop, until

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")
LLAMA, QWEN = "llama-3.1-70b", "qwen3-8b"
ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[FakeFleet]:
    fleet = FakeFleet(valkey_url)
    yield fleet
    fleet.close()


def at_once(*calls: Callable[[], T]) -> list[T | Refused]:
    """What came of calls that start at the same moment, each on a connection of its own."""
    start = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T | Refused:
        try:
            start.wait()
            return call()
        except Refused as refusal:
            return refusal
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


@pytest.mark.parametrize("round_", range(5))
def test_of_two_operators_one_wins_and_the_other_learns_what_runs(valkey: redis.Redis, round_: int) -> None:
    seed(SCENES["demo"], "")
    models.Operation.objects.update(state="done")
    version = models.Model.objects.get(name=LLAMA).version
    told = {"expected_version": version} if round_ % 2 else {}
    answers = at_once(
        lambda: actions.rebalance(ANN, LLAMA, {"prefill": 1, "decode": 3}, **told),  # type: ignore[arg-type]
        lambda: actions.set_mode(BOB, LLAMA, "monolithic", **told),  # type: ignore[arg-type]
    )
    (won,) = [each for each in answers if isinstance(each, models.Operation)]
    (lost,) = [each for each in answers if isinstance(each, Refused)]
    assert lost.kind == "busy"
    assert f"operation {won.pk} ({won.verb}) of {won.actor} still runs" in lost.reasons[0]
    model = models.Model.objects.get(name=LLAMA)
    assert model.version == version + 1
    assert (model.mode == "monolithic") == (won.verb == "set_mode")
    assert [each.verb for each in models.AuditEntry.objects.exclude(actor="setup")] == [won.verb]


def test_whoever_read_before_a_change_is_told_to_look_again(valkey: redis.Redis) -> None:
    seed(SCENES["demo"], "")
    models.Operation.objects.update(state="done")
    version = models.Model.objects.get(name=LLAMA).version
    won = actions.rebalance(ANN, LLAMA, {"prefill": 1, "decode": 3}, expected_version=version)
    models.Operation.objects.filter(pk=won.pk).update(state="done")
    with pytest.raises(Refused, match="has changed since you read it") as refused:
        actions.rebalance(BOB, LLAMA, {"prefill": 3, "decode": 1}, expected_version=version)
    assert refused.value.kind == "stale"


class Twice:
    """Every command is sent twice while two loops tick as fast as they can."""

    def __init__(self, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._faults: list[BaseException] = []
        once = commands._dispatch

        def twice(*args: Any, **options: Any) -> Any:
            once(*args, **options)
            return once(*args, **options)

        monkeypatch.setattr(commands, "_dispatch", twice)

    def __enter__(self) -> Twice:
        self._threads = [threading.Thread(target=self._tick) for _ in range(2)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        assert self._faults == []

    def _tick(self) -> None:
        loop = new_loop()
        try:
            while not self._over.wait(0.01):
                loop.run()
        except BaseException as fault:  # noqa: BLE001 - shown by the test's thread
            self._faults.append(fault)
        finally:
            connections.close_all()

    def until_done(self, what: str) -> None:
        def done() -> bool:
            self._fleet.turn()
            return not models.Operation.objects.exclude(state__in=ENDED).exists()

        until(what, done)
        assert set(models.Operation.objects.values_list("state", flat=True)) == {"done"}


def test_two_loops_and_every_command_twice_do_everything_once(fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(SCENES["demo"], "")
    with Twice(fleet, monkeypatch) as twice:
        twice.until_done("started")
        assert starts(fleet) == models.Engine.objects.count() == 8
        actions.scale_pool(ANN, QWEN, "mixed", 6)
        twice.until_done("larger")
        assert starts(fleet) == models.Engine.objects.count() == 10
        actions.scale_pool(ANN, QWEN, "mixed", 3)
        twice.until_done("smaller")
    assert starts(fleet) == models.Engine.objects.count() == 10
    assert models.Reservation.objects.count() == 4 * 4 + 3
    assert {each.spec_generation for each in models.Engine.objects.all()} == {1}


def starts(fleet: FakeFleet) -> int:
    return sum(node.starts for node in fleet.nodes.values())

"""A control loop that dies before any one of its writes, to PostgreSQL, Valkey or an agent's queue, while it carries out an
operation: the next one carries it on. A sample; PROOF_EVERY_WRITE=1 tries all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
import redis
from django.db import connection

from controlplane.control import actions, commands
from controlplane.control import loop as loop_module
from controlplane.control.actor import Actor
from controlplane.control.loop import Loop
from controlplane.control.seed import seed
from controlplane.core.lifecycle import ENDED
from controlplane.core.protocol import ROLES_OF_MODE
from controlplane.core.scenes import SCENES
from controlplane.fleet import models
from tests.integration.control_kit import FakeFleet, new_loop, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
ANN = Actor("ann", "operator")
LLAMA, QWEN = "llama-3.1-70b", "qwen3-8b"
EVERY = bool(os.environ.get("PROOF_EVERY_WRITE"))
SEED = int(os.environ.get("PROOF_SEED", "1"))
WRITES = ("INSERT", "UPDATE", "DELETE")
VALKEY_WRITES = ("SET", "PUBLISH")


class Killed(BaseException):
    """What ends the loop, past every handler."""


class Axe:
    """Falls before the write number `at` (from 0): nothing of the loop gets out any more, as after `kill -9`."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.fell = False

    @contextmanager
    def over(self, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        told, sent = loop.valkey.execute_command, commands.app.send_task

        def tell(*words: Any, **options: Any) -> Any:
            self._before(words[0] in VALKEY_WRITES)
            return told(*words, **options)

        def send(*args: Any, **options: Any) -> Any:
            self._before(True)
            return sent(*args, **options)

        with monkeypatch.context() as patched, connection.execute_wrapper(self._query):
            patched.setattr(loop.valkey, "execute_command", tell)
            patched.setattr(commands.app, "send_task", send)
            yield

    def _query(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self._before(sql.startswith(WRITES))
        return execute(sql, params, many, context)

    def _before(self, write: bool) -> None:
        if self.fell or (write and self.left == 0):
            self.fell = True
            raise Killed
        self.left -= write


class Control:
    """The control plane on fake nodes, whose loop can be killed."""

    def __init__(self, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet, self._monkeypatch = fleet, monkeypatch
        self.loop = new_loop()

    def run(self, axes: Iterator[Axe]) -> int:
        """Until every operation has ended; each axe in turn over the loop that is there. Returns how many fell."""
        fell, axe = 0, next(axes, None)

        def ended() -> bool:
            nonlocal fell, axe
            self._turn()
            with ExitStack() as over:
                if axe:
                    over.enter_context(axe.over(self.loop, self._monkeypatch))
                try:
                    self.loop.run()
                except Killed:
                    pass
            if axe and axe.fell:  # also when it fell in what a handler of the loop went on to do
                connection.close()
                self.loop, fell, axe = new_loop(), fell + 1, next(axes, None)
            return not models.Operation.objects.exclude(state__in=ENDED).exists()

        until("ended", ended, 120)
        return fell

    def _turn(self) -> None:
        """The nodes act, and whoever proves pairs says that KV moved."""
        self.fleet.turn()
        models.Pair.objects.filter(state="asked").update(state="verified", kv_bytes=1)


@pytest.fixture
def control(valkey: redis.Redis, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    monkeypatch.setattr(loop_module, "LEASE_S", 0.05)  # a killed loop's lease must not delay the test
    fleet = FakeFleet(valkey_url)
    seed(SCENES["demo"], "")
    control = Control(fleet, monkeypatch)
    control.run(iter(()))
    yield control
    fleet.close()


CHANGES: Mapping[str, tuple[Callable[[], models.Operation], ...]] = {
    "rebalance": (
        lambda: actions.rebalance(ANN, LLAMA, {"prefill": 1, "decode": 3}),
        lambda: actions.rebalance(ANN, LLAMA, {"prefill": 2, "decode": 2}),
    ),
    "toggle": (
        lambda: actions.set_mode(ANN, LLAMA, "monolithic"),
        lambda: actions.set_mode(ANN, LLAMA, "disaggregated", split={"prefill": 2, "decode": 2}),
    ),
    "size": (
        lambda: actions.scale_pool(ANN, QWEN, "mixed", 5),
        lambda: actions.scale_pool(ANN, QWEN, "mixed", 4),
    ),
}
"""There and back."""


@pytest.mark.parametrize("kind", CHANGES)
def test_a_loop_killed_before_any_write_is_carried_on(control: Control, kind: str) -> None:
    chance = random.Random(SEED)
    points: Iterator[int] = count() if EVERY else iter(sorted(chance.sample(range(20), 2)))
    for at in points:
        fell = 0
        for ask in CHANGES[kind]:
            fell += carried_out(control, ask, iter([Axe(at)]))
        if EVERY and not fell:
            break


@pytest.mark.parametrize("kind", CHANGES)
def test_a_loop_killed_again_and_again_gets_there(control: Control, kind: str) -> None:
    """Each one lives for a few writes: at least as many as the longest transaction has."""
    chance = random.Random(SEED)
    for ask in CHANGES[kind]:
        assert carried_out(control, ask, (Axe(chance.randrange(8, 24)) for _ in range(8)))


def carried_out(control: Control, ask: Callable[[], models.Operation], axes: Iterator[Axe]) -> int:
    """Returns how often the loop was killed."""
    starts = sum(node.starts for node in control.fleet.nodes.values())
    made = models.Engine.objects.count()
    operation = ask()
    fell = control.run(axes)
    operation.refresh_from_db()
    assert operation.state == "done", operation.outcome
    control.run(iter(()))  # what an operation does not wait for, such as GPUs to be given back
    holds(control)
    new = models.Engine.objects.count() - made
    assert sum(node.starts for node in control.fleet.nodes.values()) == starts + new, "an engine was started twice"
    return fell


def holds(control: Control) -> None:
    """The fleet is as desired, every GPU in one engine, and routers know."""
    for model in models.Model.objects.all():
        assert model.served_mode == model.mode
        for pool in model.pools.all():
            members = model.engines.filter(role=pool.role, arm=pool.arm, wanted=True)
            assert members.count() == pool.desired_engines
            assert set(control.fleet.listed(model.name, pool.role)) == {each.id for each in members}
            assert pool.desired_engines or pool.role not in ROLES_OF_MODE[model.mode]
    wanted = models.Engine.objects.filter(wanted=True)
    assert not wanted.exclude(move_phase="", next_role="").exists()
    until("given back", lambda: control.run(iter(())) == 0 and not leaked(), 60)
    assert models.Reservation.objects.count() == sum(engine.tensor_parallel for engine in wanted)


def leaked() -> bool:
    return models.Reservation.objects.filter(rank__engine__wanted=False).exists()

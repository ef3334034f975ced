"""The control worker as a real process: killed anywhere, cut off from PostgreSQL or Valkey, and always back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from controlplane.control import actions
from controlplane.control.seed import seed
from controlplane.core import names
from controlplane.core.scenes import SCENES
from controlplane.fleet import models
from controlplane.stack.postgres import EmbeddedPostgres
from tests.integration.control_kit import ANN, FakeFleet, Gate, new_loop, until

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[2]
QWEN = "qwen3-8b"
WORKER = (
    *("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", names.CONTROL_QUEUE, "-n", "control@twinpool"),
    *("-P", "threads", "-c", "4", "--without-gossip", "--without-mingle", "-l", "INFO"),
)


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[FakeFleet]:
    fleet = FakeFleet(valkey_url)
    yield fleet
    fleet.close()


class Worker:
    """The control worker behind gates to PostgreSQL and Valkey that a test can shut."""

    def __init__(self, postgres: EmbeddedPostgres, valkey_url: str, log: Path) -> None:
        self.postgres = Gate(postgres.urls.app)
        self.valkey = Gate(valkey_url)
        self.log = log
        self.process = self.start()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, names.ENV_DATABASE_URL: self.postgres.url, names.ENV_VALKEY_URL: self.valkey.url}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *WORKER, *options], env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        return self.process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.postgres.close()
        self.valkey.close()


@pytest.fixture
def worker(fleet: FakeFleet, postgres: EmbeddedPostgres, valkey_url: str, tmp_path: Path) -> Iterator[Worker]:
    """A worker and the demo fleet, its nodes acting by themselves in a thread."""
    seed(SCENES["demo"], "")
    worker = Worker(postgres, valkey_url, tmp_path / "control.log")
    over = threading.Event()

    def act() -> None:
        while not over.wait(0.2):
            fleet.turn()

    nodes = threading.Thread(target=act)
    nodes.start()
    yield worker
    over.set()
    nodes.join()
    worker.close()
    if sys.exc_info()[0]:
        print(worker.log.read_text())


def all_ready(fleet: FakeFleet, mixed: int = 4) -> bool:
    return len(fleet.listed(QWEN)) == mixed and len(fleet.listed("llama-3.1-70b")) == 4


def test_a_worker_survives_kills_and_outages(worker: Worker, fleet: FakeFleet) -> None:
    until("ready", lambda: all_ready(fleet), 60)

    worker.kill()
    actions.scale_pool(ANN, QWEN, "mixed", 5)
    worker.start()
    until("larger after a kill", lambda: all_ready(fleet, 5), 60)

    worker.postgres.shut()
    engine = fleet.listed(QWEN)[0]
    fleet.node_of(engine).crash(engine)
    until("said so", lambda: "PostgreSQL cannot be used" in worker.log.read_text())
    worker.postgres.open()
    until(
        "back after PostgreSQL was",
        lambda: all_ready(fleet, 5) and models.Engine.objects.get(id=engine).incarnation == 2,
        60,
    )

    worker.valkey.shut()
    actions.scale_pool(ANN, QWEN, "mixed", 6)
    time.sleep(1)  # not a wait for anything: the outage must simply last
    worker.valkey.open()
    until("larger after Valkey was away", lambda: all_ready(fleet, 6), 60)
    assert worker.process.poll() is None, "the worker ended"

    starts = sum(node.starts for node in fleet.nodes.values())
    assert starts == 4 + 6 + 1, "an engine was started more often than needed"


def test_a_worker_ends_quickly_when_asked(worker: Worker, fleet: FakeFleet) -> None:
    until("ready", lambda: all_ready(fleet), 60)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(15) == 0


BOUNDARIES = {
    "GPUs of one node recorded": ("_record_gpus", 2),
    "one engine made, not all": ("_create", 2),
    "an engine row without its ranks": ("bind_step", 3),
    "engines made, none started": ("send", 1),
    "some starts sent": ("send", 4),
    "the table in PostgreSQL, not in Valkey": ("_summary", 1),
    "some operations moved on": ("store", 2),
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_tick_killed_anywhere_heals(fleet: FakeFleet, boundary: str) -> None:
    """The nodes lack everything, so the tick makes engines, sends starts and publishes a table."""
    seed(SCENES["demo"], "")
    fleet.turn()
    function, count = BOUNDARIES[boundary]
    tick = [sys.executable, "-m", "tests.integration.control_tick", function, str(count)]
    with subprocess.Popen(tick, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as killed:
        while killed.poll() is None:  # starting it may take longer than facts live
            fleet.tell()
            time.sleep(0.2)
        assert killed.stdout
        assert killed.returncode == 9, killed.stdout.read()
    loop = new_loop()
    fleet.run(loop, "ready", lambda: all_ready(fleet))
    fleet.run(loop, "done", lambda: not models.Operation.objects.exclude(state="done").exists())
    assert sum(node.starts for node in fleet.nodes.values()) == 8
    assert models.Engine.objects.count() == 8
    assert models.Reservation.objects.count() == 20


def test_a_gate_is_what_it_claims(valkey_url: str) -> None:
    gate = Gate(valkey_url)
    client = redis.Redis.from_url(gate.url)
    assert client.ping()
    gate.shut()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    gate.open()
    assert client.ping()
    client.close()
    gate.close()
    assert urlsplit(gate.url).port != urlsplit(valkey_url).port

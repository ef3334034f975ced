"""Several real control workers at once: one beat, one tick at a time, and whatever comes twice is done once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from controlplane.control import commands
from controlplane.core import names
from controlplane.stack.postgres import EmbeddedPostgres
from tests.integration.control_kit import until

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]


class Sent(threading.Thread):
    """Listens to what Valkey is asked to do, and keeps which process sent each tick."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.by: list[int] = []
        self._client = redis.Redis.from_url(url)
        self._over = threading.Event()

    def run(self) -> None:
        with self._client.monitor() as monitor:
            for command in monitor.listen():
                if self._over.is_set():
                    return
                words = command["command"].split(" ", 2)
                if words[0] == "LPUSH" and words[1] == names.CONTROL_QUEUE:
                    self._note(words[2])

    def _note(self, text: str) -> None:
        headers = json.loads(text)["headers"]
        if headers["task"] == commands.TICK:
            self.by.append(int(headers["origin"].removeprefix("gen").partition("@")[0]))

    def stop(self, client: redis.Redis) -> None:
        self._over.set()
        client.ping()  # a last command to hear
        self.join()
        self._client.close()


@pytest.fixture
def sent(valkey: redis.Redis, valkey_url: str) -> Iterator[Sent]:
    sent = Sent(valkey_url)
    sent.start()
    yield sent
    sent.stop(valkey)


@pytest.fixture
def workers(postgres: EmbeddedPostgres, valkey_url: str, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    env = {**os.environ, names.ENV_DATABASE_URL: postgres.urls.app, names.ENV_VALKEY_URL: valkey_url}
    started = []
    for number in (1, 2):
        worker = ("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", names.CONTROL_QUEUE, "-n", f"c{number}@t")
        lean = ("-P", "threads", "-c", "2", "--without-gossip", "--without-mingle", "-l", "INFO")
        with (tmp_path / f"{number}.log").open("wb") as log:
            started.append(subprocess.Popen([sys.executable, *worker, *lean], env=env, cwd=ROOT, stdout=log, stderr=log))
    try:
        for number in (1, 2):
            until("ready", lambda number=number: " ready." in (tmp_path / f"{number}.log").read_text(), 90)  # type: ignore[misc]
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()


def test_of_two_workers_one_beats_and_the_other_takes_over(workers: list[subprocess.Popen[bytes]], sent: Sent) -> None:
    heard = len(sent.by)
    until("five beats", lambda: len(sent.by) >= heard + 5)
    (beating,) = set(sent.by[heard:])
    first = next(each for each in workers if each.pid == beating)
    other = next(each for each in workers if each.pid != beating)
    first.kill()
    first.wait()
    heard = len(sent.by)
    until("the other beats", lambda: sent.by.count(other.pid) >= 2)
    assert set(sent.by[heard + 1 :]) == {other.pid}  # one of the killed worker may have been under way

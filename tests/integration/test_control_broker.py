"""A broker that is away or hangs holds nobody up, and is said once."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from controlplane.control.pacer import FactListener
from controlplane.core import names
from tests.integration.control_kit import Gate, until

ROOT = Path(__file__).parents[2]
LONGEST_S = 90
ASK = """
import django; django.setup()
from celery.exceptions import TimeoutError as NoAnswer
from kombu.exceptions import OperationalError
from controlplane.control import commands
from controlplane.core.plan import Send
commands.wake()
for ask in (lambda: commands.send(Send("n1", "e-1", "stop", 1, "test")), lambda: commands.tail_log("n1", "e-1")):
    try:
        ask()
    except (OperationalError, NoAnswer):
        print("told")
"""


@pytest.mark.parametrize("hangs", [True, False])
def test_nobody_waits_for_a_broker_that_does_not_answer(state_dir: Path, hangs: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not hangs:
            silent.close()
        environment = {
            names.ENV_STATE: str(state_dir),
            names.ENV_VALKEY_URL: f"redis://127.0.0.1:{port}/0",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }
        asked = subprocess.run(
            [sys.executable, "-c", ASK], cwd=ROOT, env=os.environ | environment, capture_output=True, timeout=LONGEST_S
        )
    assert (asked.returncode, asked.stdout) == (0, b"told\ntold\n"), asked.stderr


def test_each_outage_of_announcements_is_said_once(
    valkey: redis.Redis, valkey_url: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(valkey_url)
    settings.VALKEY_URL = gate.url
    listener = FactListener(lambda: 0.0)
    with caplog.at_level(logging.INFO, "controlplane.control.pacer"):
        listener.start()
        for outage in (1, 2):
            until("listening", lambda: valkey.pubsub_numsub(names.FACT_CHANNEL)[0][1])  # type: ignore[no-untyped-call]
            gate.shut()
            until("said", lambda count=2 * outage - 1: len(caplog.messages) >= count)
            until("tried again", lambda: listener._back_off_s > 0.5)
            gate.open()
            until("back", lambda count=2 * outage: len(caplog.messages) >= count)
        listener.stop()
        listener.join(60)
        gate.close()
    said = [message.partition(":")[0] for message in caplog.messages]
    assert said == ["announcements of facts are not heard for now", "announcements of facts are heard again"] * 2

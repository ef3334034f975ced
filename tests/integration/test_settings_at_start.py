"""A setting that cannot be ends each process at once, with one line that names it, and never shows its value."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controlplane.core import names
from controlplane.stack.services import ROOT

CELERY = ("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", "control", "-P", "threads", "-c", "1")


@pytest.mark.parametrize(
    "words",
    [("-m", "controlplane.live.server", "--port", "0"), CELERY, ("manage.py", "ingest"), ("manage.py", "migrate")],
    ids=["web", "control", "ingest", "migrate"],
)
def test_an_address_that_can_be_none_ends_a_process_in_one_line(words: tuple[str, ...]) -> None:
    env = os.environ | {names.ENV_VALKEY_URL: "redis://:hush@valkey:77777/0", names.ENV_BOOTSTRAP: "off"}
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    remedy = "write it like redis://:password@host:6379/0"
    assert ended.stderr.strip() == f"twinpool: {names.ENV_VALKEY_URL} is wrong ({remedy}): correct or unset it"
    assert "hush" not in ended.stdout

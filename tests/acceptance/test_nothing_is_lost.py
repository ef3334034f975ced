"""Pools and modes change under streams, and processes are killed in the middle of it: a sample of what `prove-rebalance` and
`bench kill_matrix` do at length. PROOF_SEED chooses another sample."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stack import until

ROOT = Path(__file__).resolve().parents[2]
SEED = os.environ.get("PROOF_SEED", "1")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the command makes its temporary folders."""
    path = Path(tempfile.mkdtemp(prefix="twinpool-test-"))
    path.chmod(0o711)  # PostgreSQL may run as another user
    yield path
    shutil.rmtree(path, ignore_errors=True)


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(folder: Path) -> list[str]:
    """Files and processes that a command has left."""
    found = [str(path) for path in folder.iterdir()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), *process.environ().values()]
            if any(str(folder) in each for each in told) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.cmdline()}")
    return found


def test_changes_at_random_lose_no_stream_and_leave_nothing_behind(folder: Path) -> None:
    sizes = ("--streams", "8", "--rebalances", "2", "--toggles", "2")
    with command(folder, "prove-rebalance", *sizes, "--seed", SEED, "--json") as process:
        printed, said = process.communicate()
    assert process.returncode == 0, said + printed
    found = json.loads(printed)
    assert found["holds"]
    assert found["requests"] == found["streams"]["exact"] > 0
    assert found["operations"] == {"rebalance done": 2, "set_mode done": 2}
    assert found["retasks"] > 0
    assert left(folder) == []


def test_killed_processes_cost_no_stream_but_their_own(folder: Path) -> None:
    sample = ("--cells", "4", "--streams", "6", "--seed", SEED, "--settle", "90")
    with command(folder, "bench", "kill_matrix", *sample) as process:
        printed, said = process.communicate()
    assert process.returncode == 0, said + printed
    assert "0 of 4 cells do not hold" in printed
    assert left(folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_proof_that_is_ended_early_leaves_nothing_behind(folder: Path, number: signal.Signals) -> None:
    with command(folder, "prove-rebalance") as process:
        until(lambda: list(folder.glob("twinpool-proof-*/run/stack.json")), 60)
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    until(lambda: not left(folder), 60, "nothing is left")

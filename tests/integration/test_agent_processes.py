"""Engine processes: found again by their marker, killed whole, never mistaken for another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from controlplane.common import engines
from controlplane.common.processes import identity
from tests.integration.agent_kit import until
from workers.processes import EngineProcess, Marker, child_environment, kill_marked, marked


async def test_a_process_and_its_children_are_found_by_their_marker_and_killed_whole(tmp_path: Path) -> None:
    marker = Marker("n1", "e-1", 0, 1)
    env = child_environment(os.environ, {}, marker, tmp_path)
    script = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    process = EngineProcess.spawn((sys.executable, "-c", script), env, tmp_path, tmp_path / "log")
    until("both run", lambda: len(list(marked(tmp_path))) == 2)
    found = list(marked(tmp_path))
    assert {each.marker for each in found} == {marker}
    assert process.pid in [each.pid for each in found if each.leader]
    assert list(marked(tmp_path / "other")) == []
    assert kill_marked(tmp_path, replace(marker, incarnation=2)) == 0
    assert kill_marked(tmp_path, marker) == 2
    assert (await process.wait()).code == -9
    assert not process.alive()
    until("none is left", lambda: not list(marked(tmp_path)))


async def test_an_adopted_process_is_watched_but_how_it_ended_is_unknown(tmp_path: Path) -> None:
    child = await asyncio.to_thread(subprocess.Popen, ["sleep", "600"])
    adopted = EngineProcess(child.pid, identity(child.pid))
    assert adopted.alive()
    adopted.terminate()
    assert str(await adopted.wait()).startswith("ended, exit status unknown")
    assert child.wait() == -15


def test_a_reused_pid_is_not_mistaken_for_the_engine(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    stranger = EngineProcess(child.pid, "another-boot:1")
    assert not stranger.alive()
    stranger.terminate()
    stranger.kill()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_session_of_the_same_number_that_others_opened_later_is_left_alone(tmp_path: Path) -> None:
    """The engine and its agent died, and the engine's pid was used again: by a session whose leader lives, then died."""
    outside = ["env", "-C", "/", "sh", "-c", "sleep 600 & read line"]
    leader = subprocess.Popen(outside, stdin=subprocess.PIPE, start_new_session=True)
    session = engines.Session(leader.pid, identity(os.getpid()), "n1/e-1/0/1", str(tmp_path))
    engines.note(tmp_path, session)
    until("its child runs", lambda: psutil.Process(leader.pid).children())
    [child] = psutil.Process(leader.pid).children()
    assert list(marked(tmp_path)) == []
    leader.kill()
    leader.communicate()
    assert list(marked(tmp_path)) == []
    assert child.is_running()
    child.kill()

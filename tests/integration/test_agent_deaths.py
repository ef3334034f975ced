"""Whatever dies (the agent at any line, an engine while nobody looks, Valkey): engines go on and are found again."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.common.processes import identity
from controlplane.core.protocol import EngineFact
from controlplane.stack.folder import StateFolder
from controlplane.stack.leftovers import stop_leftovers
from controlplane.stack.ports import free_port
from controlplane.stack.testing import StartedValkey
from tests.integration.agent_kit import AgentKit, until


@pytest.fixture(scope="module")
def agent(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentKit]:
    """One node for all tests here; each kills the agent and leaves a new one running."""
    kit = AgentKit(valkey_url, tmp_path_factory.mktemp("agent"), accelerators="sim:32xh100-sxm")
    try:
        yield kit.start()
    finally:
        kit.close()


def same(before: EngineFact, after: EngineFact) -> bool:
    return (before.pid, before.incarnation, before.url) == (after.pid, after.incarnation, after.url)


def edit_record(agent: AgentKit, engine: str, **changes: Any) -> None:
    """Makes the disk look as if the agent had died somewhere else."""
    path = agent.state / "records" / f"{engine}.0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_engines_outlive_a_killed_agent_and_are_adopted_in_their_states(agent: AgentKit) -> None:
    ready, drained = agent.run_engine("ready", gpus=(0,)), agent.run_engine("drained", gpus=(1,))
    killed = agent.run_engine("killed", gpus=(2,))
    agent.send("drain", engine="drained", spec_generation=1)
    agent.engine_when("draining", "drained")
    agent.kill()
    os.kill(killed.pid, signal.SIGKILL)
    agent.start()
    assert same(ready, agent.engine_when("ready", "ready"))
    assert same(drained, agent.engine_when("draining", "drained"))
    assert "while the agent was away" in agent.engine_when("failed", "killed").reason
    until("scraped again", lambda: (now := agent.engine("ready")) and now.quiet_since)


def core_of(agent: AgentKit, engine: EngineFact) -> psutil.Process:
    """The engine's child, whose environment tells nothing of where it belongs."""
    [core] = [each for each in agent.engine_processes(engine.id) if each.pid != engine.pid]
    assert core.environ() == {}
    return core


def test_a_killed_engines_child_that_overwrote_its_environment_is_killed_too(agent: AgentKit) -> None:
    engine = agent.run_engine("cored", gpus=(7,), child="blank")
    core = core_of(agent, engine)
    os.kill(engine.pid, signal.SIGKILL)
    agent.engine_when("failed", "cored")
    until("killed", lambda: not core.is_running())
    assert not list((agent.state / "sessions").glob(str(engine.pid)))


def test_so_it_is_when_the_agent_died_too(agent: AgentKit) -> None:
    engine = agent.run_engine("cored", 2, gpus=(7,), child="blank")
    core = core_of(agent, engine)
    agent.kill()
    os.kill(engine.pid, signal.SIGKILL)
    agent.start()
    assert "while the agent was away" in agent.engine_when("failed", "cored", 2).reason
    until("killed", lambda: not core.is_running())


def test_down_ends_it_after_supervisor_agent_and_engine_were_killed(valkey_url: str, tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "stack").create()
    kit = AgentKit(valkey_url, tmp_path)
    kit.state = state.node("n1")
    try:
        engine = kit.start().run_engine(child="blank")
        core = core_of(kit, engine)
        kit.kill()
        os.kill(engine.pid, signal.SIGKILL)
        until("gone", lambda: not identity(engine.pid))
        assert stop_leftovers(state, with_engines=True) == [f"engine process {core.pid}"]
        until("killed", lambda: not core.is_running())
    finally:
        kit.close()


def test_an_adopted_engine_is_commanded_and_watched_like_any_other(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("ready"))
    agent.wait_logged("engine ready: nothing to do: generation 1 was started before")
    agent.send("stop", engine="ready", spec_generation=1, grace_s=10)
    assert agent.engine_when("stopped", "ready").exit_code is None
    [process] = agent.engine_processes("drained")
    process.kill()
    failed = agent.engine_when("failed", "drained")
    assert failed.reason == "ended, exit status unknown while draining"


def test_an_agent_that_died_between_start_and_note_finds_the_process_by_its_marker(agent: AgentKit) -> None:
    fact = agent.run_engine("unnoted", gpus=(3,))
    agent.kill()
    edit_record(agent, "unnoted", state="starting", pid=0, process="", ready_at=None)
    agent.start()
    assert same(fact, agent.engine_when("ready", "unnoted"))


def test_an_agent_that_died_before_the_start_says_so(agent: AgentKit) -> None:
    fact = agent.run_engine("unstarted", gpus=(4,))
    agent.kill()
    os.kill(fact.pid, signal.SIGKILL)
    edit_record(agent, "unstarted", state="starting", pid=0, process="", incarnation=2, spec_generation=2)
    agent.start()
    failed = agent.engine_when("failed", "unstarted")
    assert (failed.incarnation, failed.spec_generation) == (2, 2)
    assert agent.run_engine("unstarted", 3, gpus=(4,)).incarnation == 3


def test_a_process_of_no_record_or_of_a_past_incarnation_is_killed(agent: AgentKit) -> None:
    agent.run_engine("forgotten", gpus=(5,))
    agent.run_engine("past", gpus=(6,))
    agent.kill()
    (agent.state / "records" / "forgotten.0.json").unlink()
    edit_record(agent, "past", state="stopped")
    agent.start()
    until("both are gone", lambda: not agent.engine_processes("forgotten") + agent.engine_processes("past"))


def test_a_stop_goes_on_after_the_agent_died_in_it(agent: AgentKit) -> None:
    agent.run_engine("stopping", gpus=(7,), ignore_sigterm=True)
    agent.send("stop", engine="stopping", spec_generation=1, grace_s=2)
    agent.engine_when("stopping", "stopping")
    agent.kill()
    agent.start()
    agent.engine_when("stopped", "stopping")
    assert not agent.engine_processes("stopping")


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.2])
def test_an_agent_killed_in_the_middle_of_a_start_leaves_no_stranger(agent: AgentKit, delay_s: float) -> None:
    name = f"middle-{delay_s:g}"
    agent.send("start", spec=agent.spec(name, gpus=(8 + int(delay_s * 100),)))
    until("begun", lambda: (agent.state / "records" / f"{name}.0.json").exists())
    time.sleep(delay_s)  # where exactly it dies is left to chance
    agent.kill()
    agent.start()
    fact = until("decided", lambda: (now := agent.engine(name)) and now.state in ("ready", "failed") and now)
    assert [each.pid for each in agent.engine_processes(name)] == ([fact.pid] if fact.state == "ready" else [])


def test_sigterm_ends_the_agent_soon_and_leaves_engines_running(agent: AgentKit) -> None:
    fact = agent.run_engine("left", gpus=(29,))
    assert agent.signal(signal.SIGTERM, 4) == 0
    assert [each.pid for each in agent.engine_processes("left")] == [fact.pid]
    agent.start()
    assert same(fact, agent.engine_when("ready", "left"))


def test_sigusr1_stops_all_engines_at_once_and_then_the_agent(agent: AgentKit) -> None:
    agent.run_engine("stubborn-1", gpus=(30,), ignore_sigterm=True)
    agent.run_engine("stubborn-2", gpus=(31,), ignore_sigterm=True)
    assert agent.signal(signal.SIGUSR1, 12) == 0
    assert not agent.engine_processes()
    assert {each.state for each in agent.fact().engines} <= {"stopped", "failed"}


def test_a_valkey_that_goes_away_and_comes_back_disturbs_no_engine(tmp_path: Path) -> None:
    valkey = StartedValkey(tmp_path / "valkey", free_port(), secrets.token_hex(8))
    valkey.start()
    agent = AgentKit(valkey.url, tmp_path)
    try:
        fact = agent.start().run_engine(gpus=(0,))
        os.kill(valkey.pid, signal.SIGKILL)
        agent.wait_logged("this node's fact waits")
        agent.wait_logged("telemetry cannot be sent and is dropped")
        agent.wait_logged("commands wait")
        assert valkey.url not in agent.log.read_text() and valkey.url.split("@")[0][9:] not in agent.log.read_text()
        valkey.stop()
        valkey.start()
        after = agent.engine_when("ready")
        assert same(fact, after)
        assert agent.run_engine("e-2", gpus=(1,)).state == "ready"
        until("telling what was dropped", lambda: [
            record for record in agent.records() if record.kind == "node" and record.rows[0]["dropped"] > 0
        ])  # fmt: skip
        os.kill(valkey.pid, signal.SIGKILL)
        assert agent.signal(signal.SIGTERM, 4) == 0
    finally:
        agent.close()
        valkey.stop()

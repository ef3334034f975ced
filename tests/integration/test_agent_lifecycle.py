"""An engine's life under a real agent: started, verified, drained, stopped, and every way to fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from controlplane.core.signing import engine_key
from tests.integration.agent_kit import AgentKit, until


@pytest.fixture(scope="module")
def agent(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentKit]:
    """One agent for all tests here; each test uses an engine of its own."""
    kit = AgentKit(valkey_url, tmp_path_factory.mktemp("agent"), accelerators="sim:16xh100-sxm")
    try:
        yield kit.start()
    finally:
        kit.close()


def test_a_started_engine_becomes_ready_after_a_real_generation(agent: AgentKit) -> None:
    fact = agent.run_engine("life", gpus=(0, 1))
    assert (fact.model, fact.incarnation, fact.version, fact.reason) == ("m", 1, "0.0.test", "")
    assert fact.gpus == (f"sim-{agent.node}-0", f"sim-{agent.node}-1")
    assert fact.url.startswith("http://127.0.0.1:") and fact.pid and fact.compat and fact.ready_at
    assert os.getsid(fact.pid) == fact.pid
    arguments = psutil.Process(fact.pid).cmdline()
    assert engine_key(agent.key, "life", 1) not in " ".join(arguments)


def test_an_engine_tells_when_it_is_busy_and_since_when_it_is_quiet(agent: AgentKit) -> None:
    fact = agent.run_engine("quiet", gpus=(2,))
    until("quiet", lambda: (now := agent.engine("quiet")) and now.quiet_since)
    (agent.engine_folder(fact) / "running").write_text("3")
    until("busy", lambda: (now := agent.engine("quiet")) and now.running == 3 and now.quiet_since is None)


def test_a_drain_and_an_undrain_change_the_state_and_an_old_drain_does_not(agent: AgentKit) -> None:
    agent.run_engine("drained", gpus=(3,))
    agent.send("drain", engine="drained", spec_generation=1, issued_at=100.0)
    agent.engine_when("draining", "drained")
    agent.send("undrain", engine="drained", spec_generation=1, issued_at=102.0)
    agent.engine_when("ready", "drained")
    agent.send("drain", engine="drained", spec_generation=1, issued_at=101.0)
    agent.wait_logged("engine drained: nothing to do: a newer drain or undrain was obeyed before")
    agent.engine_when("ready", "drained")


def test_a_stopped_engine_comes_back_as_the_next_incarnation_on_its_port(agent: AgentKit) -> None:
    first = agent.run_engine("again", gpus=(4,))
    agent.send("stop", engine="again", spec_generation=1, grace_s=10)
    stopped = agent.engine_when("stopped", "again")
    assert (stopped.exit_code, stopped.pid, stopped.log_tail) == (-signal.SIGTERM, 0, "")
    second = agent.run_engine("again", 2, gpus=(4,))
    assert (second.incarnation, second.url, second.pid != first.pid) == (2, first.url, True)


def test_an_incarnation_is_never_below_the_floor_of_its_spec(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("floor", gpus=(5,), incarnation_floor=41))
    assert agent.engine_when("ready", "floor").incarnation == 42


def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(agent: AgentKit) -> None:
    fact = agent.run_engine("stubborn", gpus=(6,), ignore_sigterm=True, child=True)
    child = int(agent.ask("tail_log", engine="stubborn")["lines"][-1].removeprefix("child "))
    assert psutil.pid_exists(child)
    agent.send("stop", engine="stubborn", spec_generation=1, grace_s=0.5)
    assert agent.engine_when("stopped", "stubborn").exit_code == -signal.SIGKILL
    until("gone", lambda: not running(child) and not running(fact.pid))


def test_a_second_stop_can_shorten_the_first(agent: AgentKit) -> None:
    agent.run_engine("hurried", gpus=(7,), ignore_sigterm=True)
    agent.send("stop", engine="hurried", spec_generation=1, grace_s=600)
    agent.engine_when("stopping", "hurried")
    agent.send("stop", engine="hurried", spec_generation=1, grace_s=0)
    agent.engine_when("stopped", "hurried")


def test_an_engine_that_is_killed_fails_with_the_signal_and_leaves_no_child(agent: AgentKit) -> None:
    fact = agent.run_engine("killed", gpus=(8,), child=True)
    child = int(agent.ask("tail_log", engine="killed")["lines"][-1].removeprefix("child "))
    os.kill(fact.pid, signal.SIGKILL)
    failed = agent.engine_when("failed", "killed")
    assert failed.reason == "was killed by SIGKILL while ready"
    assert (failed.exit_code, failed.incarnation) == (-9, 1)
    until("gone", lambda: not running(child))


def test_an_engine_that_cannot_go_on_fails_with_its_code_and_log_but_without_its_key(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("crash", gpus=(9,), args={"crash": True}))
    failed = agent.engine_when("failed", "crash")
    assert (failed.reason, failed.exit_code) == ("exited with code 3 while starting", 3)
    assert failed.log_tail == "engine starts\ncannot go on, my key is [secret]"


def test_an_engine_that_serves_another_model_fails_at_once(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("wrong", gpus=(9,), args={"serve_as": "other"}))
    assert agent.engine_when("failed", "wrong").reason == "it serves other instead of m while verifying"
    until("gone", lambda: not agent.engine_processes("wrong"))


def test_an_engine_that_is_not_healthy_in_time_is_given_up(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("slow", gpus=(9,), args={"healthy_after_s": 600, "start_timeout_s": 1}))
    assert "not healthy within 1 s: /health answers 503" in agent.engine_when("failed", "slow").reason


def test_a_spec_the_driver_refuses_fails_with_the_remedy(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("refused", gpus=(9,), args={"refuse": True}))
    failed = agent.engine_when("failed", "refused")
    assert failed.reason == "cannot start: the engine environment is missing: run manage.py engine-env"
    assert agent.run_engine("refused", 2, gpus=(9,)).incarnation == 2


def test_gpus_that_are_held_or_unknown_fail_the_start(agent: AgentKit) -> None:
    agent.run_engine("holder", gpus=(10,))
    agent.send("start", spec=agent.spec("second", gpus=(10,)))
    assert f"GPU sim-{agent.node}-10 is held by engine holder" in agent.engine_when("failed", "second").reason
    agent.send("start", spec=agent.spec("third", gpus=(99,)))
    assert f"this node has no GPU 'sim-{agent.node}-99'" in agent.engine_when("failed", "third").reason


def test_a_kind_without_a_driver_and_a_secret_that_is_missing_fail_the_start(agent: AgentKit) -> None:
    agent.send("start", spec=replace(agent.spec("kind", gpus=(11,)), kind="vllm"))
    assert "this agent runs no vllm engines" in agent.engine_when("failed", "kind").reason
    agent.send("start", spec=agent.spec("secret", gpus=(11,), env={"HF_TOKEN": "hub"}))
    assert "the secret hub is not on this node: write its value to" in agent.engine_when("failed", "secret").reason


def test_an_engine_that_hangs_is_said_to_hang_and_recovers(agent: AgentKit) -> None:
    fact = agent.run_engine("hang", gpus=(12,))
    os.kill(fact.pid, signal.SIGSTOP)
    hung = until("hung", lambda: (now := agent.engine("hang")) and now.reason and now)
    assert hung.state == "ready" and hung.reason.startswith("hung: it answered no scrape for over 10 s")
    os.kill(fact.pid, signal.SIGCONT)
    until("well again", lambda: (now := agent.engine("hang")) and not now.reason)


def test_an_engine_in_any_state_can_be_stopped(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("unborn", gpus=(13,), args={"healthy_after_s": 600}))
    agent.engine_when("starting", "unborn")
    agent.send("stop", engine="unborn", spec_generation=1, grace_s=5)
    agent.engine_when("stopped", "unborn")


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_agent_refuses_a_state_folder_that_is_in_use(agent: AgentKit, tmp_path: Path) -> None:
    second = AgentKit(agent.url, tmp_path)
    second.state = agent.state
    assert second.spawn().wait(60) == 2
    assert second.logged("another agent runs with the state folder")
    assert agent.engine("life")

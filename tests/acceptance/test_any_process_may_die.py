"""`kill -9` of any one process: the service is back by itself, and a request on another engine is not disturbed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from stack import Answer, Stack, until

LONG = {
    "model": "qwen3-8b",
    "prompt": "a long story " * 40,
    "max_tokens": 400,
    "ignore_eos": True,
    "seed": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
}
SHORT = {"model": "llama-3.1-70b", "prompt": "a short question", "max_tokens": 8, "seed": 1}


@contextmanager
def undisturbed(demo: Stack) -> Iterator[None]:
    """A long stream runs while the block does its damage; afterwards it must be whole and equal to the engine's own text."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(demo.ask("completions", LONG, timeout_s=120)))
    thread.start()
    until(lambda: any(engine.running for node in ("n1", "n2", "n3") for engine in demo.engines(node).values()), 20)
    yield
    thread.join(120)
    expected = demo.ask_engine(demo.model("qwen3-8b").engines[0], "completions", LONG)
    assert [answer.said for answer in answers] == [expected.said]
    assert expected.done


def _serves(demo: Stack) -> bool:
    return demo.ask("completions", SHORT).route.get("path") == "disaggregated"


@pytest.mark.parametrize("name", ["web", "control", "ingest", "agent-n1", "valkey", "postgres"])
def test_a_killed_service_is_back_by_itself(demo: Stack, name: str) -> None:
    until(lambda: _serves(demo))
    engines = {engine.id: (engine.pid, engine.incarnation) for engine in demo.engines("n1").values()}
    with undisturbed(demo):
        pid = demo.kill(name)
        assert _serves(demo)
        demo.restarted(name, pid)
    until(lambda: _serves(demo))
    until(lambda: engines == {engine.id: (engine.pid, engine.incarnation) for engine in demo.engines("n1").values()})


def test_a_killed_router_is_back_and_serves_from_its_cache(demo: Stack) -> None:
    pid = demo.kill("router")
    demo.restarted("router", pid)
    until(lambda: _serves(demo))


def test_an_agent_adopts_its_engines_and_still_stops_them_on_command(demo: Stack) -> None:
    """The engines of a killed agent go on as the same processes, known again by pid and start time."""
    before = {engine.id: (engine.pid, engine.incarnation, engine.started_at) for engine in demo.engines("n2").values()}
    assert before
    pid = demo.kill("agent-n2")
    demo.restarted("agent-n2", pid)
    until(
        lambda: (
            before
            == {
                engine.id: (engine.pid, engine.incarnation, engine.started_at)
                for engine in demo.engines("n2").values()
                if engine.state == "ready"
            }
        )
    )


def test_a_killed_engine_is_started_again_as_a_new_incarnation(demo: Stack) -> None:
    until(lambda: _serves(demo))
    victim = next(engine for engine in demo.model("llama-3.1-70b").engines if engine.role == "prefill")
    with undisturbed(demo):
        os.kill(demo.engines(victim.node)[victim.id].pid, signal.SIGKILL)
        assert _serves(demo)
    until(
        lambda: any(
            engine.id == victim.id and engine.incarnation == victim.incarnation + 1 and engine.state == "ready"
            for engine in demo.model("llama-3.1-70b").engines
        ),
        what="the new incarnation is in the routing table",
    )


def test_the_router_serves_with_postgres_valkey_and_web_all_stopped(demo: Stack) -> None:
    until(lambda: _serves(demo))
    with demo.frozen("postgres", "valkey", "web"):
        assert all(_serves(demo) for _ in range(5))
    until(lambda: _serves(demo))
    until(lambda: {each["state"] for each in demo.status()["processes"]} <= {"ready"}, what="all processes answer again")

"""What reaches an agent over the broker and what it makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import Command, EngineFact
from controlplane.core.signing import seal
from tests.integration.agent_kit import AgentKit, until


@pytest.fixture(scope="module")
def agent(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentKit]:
    kit = AgentKit(valkey_url, tmp_path_factory.mktemp("agent"))
    try:
        kit.start()
        kit.run_engine("e-1")
        yield kit
    finally:
        kit.close()


# Anybody with the password of the broker can put these there.
MALFORMED = [
    "[]", "x", "5", "{}", "null", "\xff", "[" * 100_000, '{"properties": 1}',
    '{"properties": {"delivery_tag": "t"}, "body": 7}',
    json.dumps({"properties": {"delivery_tag": "t"}, "headers": {"task": names.TASK_STOP_ENGINE}}),
    json.dumps({"properties": {"delivery_tag": "t"}, "headers": {"task": [1]}, "body": "e30="}),
]  # fmt: skip


def test_a_message_that_is_none_is_refused_and_the_agent_goes_on(agent: AgentKit, valkey_url: str) -> None:
    assert agent.process
    with redis.Redis.from_url(valkey_url) as client:
        for text in MALFORMED:
            client.lpush(names.node_queue(agent.node), text)
    assert agent.ask("list_engines")
    assert agent.process.poll() is None
    log = agent.log.read_text()
    assert "Unrecoverable" not in log and "a malformed message on the queue was refused" in log


def test_a_start_that_comes_twice_is_done_once(agent: AgentKit) -> None:
    before = agent.engine("e-1")
    for _ in range(3):
        agent.send("start", spec=agent.spec("e-1"))
    agent.wait_logged("engine e-1: nothing to do: generation 1 was started before")
    after = agent.engine("e-1")
    assert before and after and (after.pid, after.incarnation) == (before.pid, before.incarnation)
    assert len(agent.engine_processes()) == 1


def test_a_newer_generation_of_the_same_spec_keeps_the_process(agent: AgentKit) -> None:
    before = agent.engine("e-1")
    agent.send("start", spec=agent.spec("e-1", 2))
    after = agent.engine_when("ready", "e-1", 2)
    assert before and (after.pid, after.incarnation) == (before.pid, before.incarnation)


def test_stale_commands_are_refused(agent: AgentKit) -> None:
    agent.send("start", spec=agent.spec("e-1", 2))
    agent.send("stop", engine="e-1", spec_generation=1)
    agent.send("drain", engine="e-1", spec_generation=1)
    agent.wait_logged("a drain/undrain command was refused: stale: generation 1 of e-1, 2 was seen")
    agent.wait_logged("a stop command was refused: stale: generation 1 of e-1, 2 was seen")
    assert agent.engine_when("ready", "e-1")


def test_a_stop_that_overtakes_its_start_keeps_it_out(agent: AgentKit) -> None:
    assert agent.ask("list_engines")["engines"]
    agent.send("stop", engine="early", spec_generation=4)
    until("remembered", lambda: (agent.state / "records" / "early.0.json").exists())
    agent.send("start", spec=agent.spec("early", 4, gpus=(1,)))
    agent.wait_logged("engine early: nothing to do: generation 4 was started before (now stopped)")
    assert agent.engine("early") is None


def test_forged_commands_do_nothing(agent: AgentKit) -> None:
    spec = agent.spec("forged", gpus=(1,))
    agent.send_envelope("start", agent.envelope("start", key=b"x" * 32, spec=spec))
    agent.wait_logged("a start command was refused: signature does not match: not made with this node's key")
    for envelope in (None, 7, {"body": "{}"}, "{}", "[" * 50_000):
        agent.send_envelope("stop", envelope)
    agent.wait_logged("a stop command was refused: not a signed envelope")
    assert set(agent.ask_envelope("list_engines", "junk")) == {"error"}
    assert agent.engine("forged") is None


def test_a_command_for_another_node_is_refused(agent: AgentKit) -> None:
    answer = agent.ask("list_engines", node="elsewhere")
    assert answer == {"error": f"it is for node 'elsewhere', this is {agent.node!r}"}


def test_a_command_sent_to_the_wrong_task_is_refused(agent: AgentKit) -> None:
    stop = Command(node=agent.node, verb="stop", issued_at=1.0, engine="e-1", spec_generation=9)
    answer = agent.ask_envelope("list_engines", seal(agent.key, encode(stop)))
    assert answer == {"error": "verb 'stop' does not belong to this task"}
    assert agent.engine_when("ready", "e-1")


def test_a_malformed_spec_leaves_nothing_behind(agent: AgentKit) -> None:
    document = encode(Command(node=agent.node, verb="start", issued_at=1.0, spec_generation=1, spec=agent.spec("shape")))
    document["spec"]["tensor_parallel"] = "four"
    agent.send_envelope("start", seal(agent.key, document))
    agent.wait_logged("malformed command: spec.tensor_parallel: expected int, got str")
    agent.send("start", spec=replace(agent.spec("shape"), id="../shape"))
    agent.wait_logged("malformed command: '../shape' is no engine id")
    assert agent.engine("shape") is None
    assert not list(agent.state.rglob("*shape*"))


def test_the_list_shows_engines_as_the_fact_does(agent: AgentKit) -> None:
    engines = agent.ask("list_engines")["engines"]
    fact = agent.engine("e-1")
    assert fact and engines[0]["id"] == "e-1" and engines[0]["pid"] == fact.pid
    assert set(engines[0]) == set(encode(fact)) and isinstance(fact, EngineFact)


def test_the_log_of_an_engine_is_read_from_its_end(agent: AgentKit) -> None:
    assert agent.ask("tail_log", engine="e-1", lines=1) == {"engine": "e-1", "incarnation": 1, "lines": ["engine starts"]}


@pytest.mark.parametrize("name", ["e-2", "../../../etc/passwd", "/etc/passwd", "", "e-1/../e-1"])
def test_only_logs_of_known_engines_can_be_read(agent: AgentKit, name: str) -> None:
    answer = agent.ask("tail_log", engine=name)
    assert set(answer) == {"error"} and ("there is no engine" in answer["error"] or "is no engine id" in answer["error"])

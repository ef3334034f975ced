"""The log of an engine on its page: asked of the real agent, for those who may, without secrets, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.config import config
from controlplane.console.engine_log import MAX_LINE_CHARS, MAX_WAITING, LogAway, LogReader
from controlplane.core.signing import engine_key, node_key
from controlplane.fleet import models
from controlplane.physics.catalog import read_config
from tests.integration.agent_kit import AgentKit, until
from tests.integration.control_kit import real_agent
from tests.integration.test_console_changes import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> Iterator[AgentKit]:
    with real_agent(valkey_url, tmp_path) as kit:
        yield kit


def placed(node: str, team: str = "search") -> models.Engine:
    """Engine e-1 of a model of `team`, on this node."""
    model = models.Model.objects.create(
        name="m", source="m", config=read_config("qwen3-8b"), engine_kind="simulated", team=team
    )
    engine = models.Engine.objects.create(id="e-1", model=model, role="mixed", number=1, kind="simulated", state="ready")
    models.Rank.objects.create(engine=engine, node=models.Node.objects.create(name=node))
    return engine


def log(client: Client, engine: str = "e-1", **query: Any) -> tuple[int, dict[str, Any]]:
    answer = client.get(f"/engines/{engine}/log", query)
    return answer.status_code, answer.json()


def test_the_log_comes_from_the_agent_for_those_who_may_read_it(agent: AgentKit, db: None) -> None:
    placed(agent.node)
    agent.send("start", spec=agent.spec("e-1", model_config=read_config("qwen3-8b"), gpu_kind="h100-sxm"))
    agent.engine_when("ready")
    ops = signed_in("ops-1", "operator")
    status, told = log(ops)
    assert status == 200 and (told["node"], told["incarnation"]) == (agent.node, 1)
    assert "e-1 serves m on 127.0.0.1" in told["lines"][-1]
    assert log(ops, seen=told["stamp"]) == (200, {"same": True})

    (file,) = agent.state.glob("logs/e-1.0.1.log")
    key = engine_key(node_key(config().fleet_secret(), agent.node), "e-1", 1)
    with file.open("a") as written:
        written.write(f"GET / Authorization: Bearer {key}\n\x1b[31mpassword={'hunter22'}\x1b[0m\n{'x' * 9999}\n")
    until("read again", lambda: "password" in " ".join(log(ops, lines=3)[1]["lines"]))  # an answer is good for a second
    status, told = log(ops, lines=3, seen=told["stamp"])
    assert told["lines"] == ["GET / Authorization: Bearer [secret]", "password=[secret]", "x" * MAX_LINE_CHARS]
    assert len(log(ops, lines=1)[1]["lines"]) == 1

    assert log(signed_in("own", "owner", team="search"))[0] == 200
    for client in (signed_in("look", "viewer"), signed_in("other", "owner", team="chat")):
        status, told = log(client)
        assert (status, told) == (403, {"error": "Needs the role operator, or owner in team search"})
    assert Client().get("/engines/e-1/log").status_code == 401
    assert ops.get("/engines/..%2f..%2fetc%2fpasswd/log").status_code == 404

    agent.kill()
    until("asked again", lambda: log(ops)[0] == 503)
    assert log(ops) == (503, {"error": f"the agent of {agent.node} does not answer: see whether it runs"})


def test_a_lost_node_is_not_asked_and_an_engine_without_a_place_has_no_log(db: None) -> None:
    engine = placed("n1")
    models.Node.objects.update(lost=True)
    ops = signed_in("ops-1", "operator")
    assert log(ops) == (503, {"error": "Node n1 is lost: its agent cannot be asked."})
    assert log(ops, rank=7)[0] == 404
    engine.ranks.all().delete()
    assert log(ops) == (404, {"error": "It has no place on a node now."})


def test_many_viewers_are_one_question_and_agents_that_hang_hold_up_few() -> None:
    asked: list[str] = []
    go_on = threading.Event()

    def ask(node: str, engine: str, _lines: int, _timeout_s: float, _rank: int) -> dict[str, Any]:
        asked.append(engine)
        go_on.wait(30)
        return {"engine": engine, "incarnation": 2, "lines": ["a", "b"]}

    reader = LogReader(ask, wait_s=60, keep_s=60)
    answers: list[Any] = []

    def read(engine: str) -> None:
        try:
            answers.append(reader.tail("n1", engine).lines)
        except LogAway as error:
            answers.append(str(error))

    threads = [threading.Thread(target=read, args=("e-1",)) for _ in range(20)]
    threads += [threading.Thread(target=read, args=(f"e-{n}",)) for n in range(2, MAX_WAITING + 1)]
    for each in threads:
        each.start()
    while len(reader._asked) < MAX_WAITING:
        time.sleep(0.01)
    read("one-too-many")
    assert answers == ["too many logs are being read: try again in a moment"]
    go_on.set()
    for each in threads:
        each.join(30)
    assert asked.count("e-1") == 1 and answers[1:] == [["a", "b"]] * (len(threads))

"""Two agents measure the link between them when control tells them to, and nobody else makes them."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
import redis

from controlplane.config import config
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import AgentFact, Command
from controlplane.core.signing import seal
from controlplane.stack import doctor_fleet, doctor_links
from controlplane.stack.doctor_fleet import Heard
from controlplane.stack.doctor_servers import Rows
from tests.integration.control_kit import real_agent
from workers import links
from workers.commands import CommandRefused, open_command

TOKEN = "ab" * 32


def heard(*nodes: str) -> dict[str, Heard]:
    return {f"agent {name}": Heard(AgentFact(name, "b", 1, 0.0, "127.0.0.1"), 0.0, 0.0) for name in nodes}


def test_each_node_sends_once_and_receives_once() -> None:
    pairs = doctor_links.ring(heard("c", "a", "b", "stranger"), Rows(("a", "b", "c", "silent")))
    assert [(sender.node, receiver.node) for sender, receiver in pairs] == [("a", "b"), ("b", "c"), ("c", "a")]
    assert doctor_links.ring(heard("a"), Rows(("a",))) == []


def test_agents_measure_the_link_between_them(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with real_agent(valkey_url, tmp_path / "one") as one, real_agent(valkey_url, tmp_path / "two") as two:
        facts, refused = doctor_fleet.hear(valkey, config().fleet_secret())
        assert refused == []
        found = list(doctor_links.measured(facts, Rows((one.node, two.node))))
        assert {each.subject for each in found} == {f"{one.node} to {two.node}", f"{two.node} to {one.node}"}
        for each in found:
            assert each.check == "link" and "Gb/s over one TCP stream" in each.said, each
        two.kill()
        away = next(doctor_links.measured(facts, Rows((one.node, two.node)), timeout_s=1.0))
        assert away.level == "fail" and away.remedy


def test_whoever_has_no_token_measures_nothing() -> None:
    port = links.listen("127.0.0.1", TOKEN)
    with pytest.raises(links.LinkFailed, match="cannot be reached"):
        links.send(f"127.0.0.1:{port}", "cd" * 32)
    with pytest.raises(links.LinkFailed, match="cannot be reached"):
        links.send(f"127.0.0.1:{port}", TOKEN)  # a listener takes one visitor
    for bad in ("", "xy", "ab"):
        with pytest.raises(links.LinkFailed, match="no token"):
            links.listen("127.0.0.1", bad)
    with pytest.raises(links.LinkFailed, match="cannot be reached"):
        links.send("nowhere", TOKEN)


def test_bytes_are_counted_by_who_gets_them() -> None:
    port = links.listen("127.0.0.1", TOKEN)
    seen = links.send(f"127.0.0.1:{port}", TOKEN)
    assert seen["gbps"] > 0 and seen["connect_ms"] > 0


def test_a_visitor_who_says_nothing_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_S", 0.1)
    with socket.create_connection(("127.0.0.1", links.listen("127.0.0.1", TOKEN))) as silent:
        silent.settimeout(60)
        assert silent.recv(1) == b"", "it is let go"


@pytest.mark.parametrize("verb", ["link_listen", "link_send"])
def test_a_command_to_measure_belongs_to_its_own_task(verb: str) -> None:
    key = b"k" * 32
    envelope = seal(key, encode(Command("n1", verb, time.time(), token=TOKEN)))  # type: ignore[arg-type]
    assert open_command(envelope, key, "n1", (verb,)).token == TOKEN
    with pytest.raises(CommandRefused, match="does not belong to this task"):
        open_command(envelope, key, "n1", ("stop",))
    assert TOKEN not in repr(open_command(envelope, key, "n1", (verb,)))
    assert names.TASK_LINK == "workers.link"

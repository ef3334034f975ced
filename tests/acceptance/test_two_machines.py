"""Nodes on machines of their own: they join by token, hand KV over to each other, and a cut link loses nothing.

The machines are network namespaces. Where they cannot be made the tests are skipped and say why.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import Counter

import httpx
import pytest
from machine_fleet import Fleet, start_agent, unit
from machines import Machine, cut
from stack import until

from workers import ports

pytestmark = pytest.mark.timeout(1200)  # the first one starts a whole stack, one waits for half a minute
CUT_S = 30.0
METRICS_PORT = 9464
ENGINE_PORTS = range(ports.LOW, ports.HIGH)


def test_an_engine_of_one_machine_decodes_what_one_of_another_prefilled(fleet: Fleet) -> None:
    engines = fleet.engines()
    assert {engines["prefill"][0], engines["decode"][0]} == {"a", "b"}
    status, route = fleet.ask("over the wire " * 50)
    assert (status, route["path"]) == (200, "disaggregated")
    routed = fleet.home.inside(lambda: {engine.node: engine.url for engine in fleet.stack.model("m").engines})
    assert {node: httpx.URL(url).host for node, url in routed.items()} == {
        name: machine.address for name, machine in fleet.nodes.items()
    }
    assert fleet.pulled() > 0, "no KV came over the wire"


def test_only_the_ports_of_the_documents_are_open_to_the_other_machine(fleet: Fleet) -> None:
    ends = fleet.stack.endpoints
    of_home = {ends.valkey_port, ends.metrics_ports["control"], ends.metrics_ports["ingest"]}
    for machine in (fleet.home, *fleet.nodes.values()):
        open_here = {port for _, port in machine.listening()}
        documented = {port for port in open_here if port == METRICS_PORT or port in ENGINE_PORTS}
        expected = of_home if machine == fleet.home else documented
        other = next(each for each in fleet.nodes.values() if each != machine)
        assert expected and reached(other, machine.address, open_here) == expected


def reached(machine: Machine, address: str, ports: set[int]) -> set[int]:
    """Those of the ports to which this machine can connect."""
    return machine.inside(lambda: {port for port in ports if connects(address, port)})


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_restarting_the_agents_unit_leaves_its_engines_serving(fleet: Fleet) -> None:
    """What systemd does to a unit with KillMode=process: the signal goes to the main process alone, then it is started
    again. The token is not given a second time."""
    assert (unit()["KillMode"], unit()["KillSignal"]) == ("process", "SIGTERM")
    before, engines = fleet.engines(), fleet.pids()
    name = before["decode"][0]
    boot, agent = fleet.boot(name), fleet.agents[name]
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(int(unit()["TimeoutStopSec"])) == 0
    assert fleet.ask("while no agent runs")[0] == 200
    start_agent(fleet, name, fleet.nodes[name])
    until(lambda: fleet.boot(name) not in ("", boot), 120, "the new agent is heard")
    assert fleet.ask("with another agent")[0] == 200
    assert (fleet.engines(), fleet.pids()) == (before, engines), "an engine was started anew"


def test_a_cut_link_gives_no_gpu_twice_loses_no_request_and_heals(fleet: Fleet) -> None:
    before = fleet.engines()
    far = fleet.nodes[before["decode"][0]]
    answers: list[tuple[float, int, dict[str, str]]] = []
    asked = threading.Event()
    running: list[threading.Thread] = []

    def send(number: int) -> None:
        begun = time.monotonic()
        answers.append((begun, *fleet.ask(f"request {number} of many")))

    def keep_asking() -> None:
        number = 0
        while not asked.wait(0.5):
            running.append(threading.Thread(target=send, args=(number := number + 1,)))
            running[-1].start()

    asking = threading.Thread(target=keep_asking)
    asking.start()
    twice: list[Counter[str]] = []
    try:
        until(lambda: len(answers) > 3, 60)
        with cut(fleet.home, far):
            cut_at = time.monotonic()
            while time.monotonic() - cut_at < CUT_S:
                twice += [seen for seen in [fleet.processes()] if max(seen.values(), default=0) > 1]
                time.sleep(0.5)
            healed_at = time.monotonic()
        until(lambda: fleet.ask("healed?")[1].get("path") == "disaggregated", 180, "both nodes serve together again")
    finally:
        asked.set()
        asking.join()
        for thread in running:
            thread.join(150)
    assert twice == [], "two engines on one GPU"
    during = [(status, route) for begun, status, route in answers if cut_at < begun < healed_at]
    assert len(during) > 20
    assert [each for each in during if each[0] != 200] == []
    until(lambda: {state for *_, state in fleet.engines().values()} == {"ready"}, 120, "all are ready")
    until(lambda: fleet.processes() == Counter({"a": 1, "b": 1}), 60, "one engine on each node")
    assert fleet.rows("SELECT count(*), count(DISTINCT gpu_id) FROM fleet_reservation") == [(2, 2)]
    assert not fleet.rows("SELECT name FROM fleet_node WHERE lost")

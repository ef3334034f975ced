"""Nodes on machines of their own: they join by token, hand KV over to each other, a cut link loses nothing, and neither do
new secrets on all of them.

The machines are network namespaces. Where they cannot be made the tests are skipped and say why.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from machines import Machine, cut, impossible, machines
from stack import ROOT, Stack, ask, until

from controlplane.core import names
from workers import ports
from workers.processes import Marked, marked

pytestmark = pytest.mark.timeout(1200)  # the first one starts a whole stack, one waits for half a minute
CONFIG = ROOT / "controlplane" / "physics" / "model_configs" / "qwen3-8b.json"
CUT_S = 30.0
BODY: dict[str, Any] = {"model": "m", "max_tokens": 8, "ignore_eos": True}
METRICS_PORT = 9464
ENGINE_PORTS = range(ports.LOW, ports.HIGH)


@dataclass
class Fleet:
    """The stack on the first machine, an agent on each other one."""

    stack: Stack
    home: Machine
    nodes: dict[str, Machine]
    folders: dict[str, Path]
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.home.inside(lambda: self.stack.rows(query))

    def engines(self) -> dict[str, tuple[str, int, str]]:
        """Node, incarnation and state of each engine that is wanted, by role."""
        found = self.rows(
            "SELECT e.role, n.name, e.incarnation, e.state FROM fleet_engine e "
            "JOIN fleet_rank r ON r.engine_id = e.id JOIN fleet_node n ON n.id = r.node_id WHERE e.wanted"
        )
        return {role: (node, incarnation, state) for role, node, incarnation, state in found}

    def ask(self, prompt: str) -> tuple[int, dict[str, str]]:
        """Status and way of one request; 0 for none."""

        def send() -> tuple[int, dict[str, str]]:
            try:
                answer = ask(self.stack.router_url, "completions", BODY | {"prompt": prompt}, timeout_s=120)
            except httpx.HTTPError as error:
                return 0, {"error": repr(error)}
            return answer.status, answer.route

        return self.home.inside(send)

    def pulled(self) -> float:
        """Tokens whose KV the decode engine pulled from another engine."""
        engine = self.home.inside(lambda: next(each for each in self.stack.model("m").engines if each.role == "decode"))
        page = self.home.inside(lambda: httpx.get(f"{engine.url}/metrics", timeout=60).text)
        return sum(map(float, re.findall(r'^vllm:prompt_tokens_by_source_total{.*external_kv_transfer"} (\S+)', page, re.M)))

    def leaders(self) -> list[Marked]:
        return [each for name, folder in self.folders.items() for each in marked(folder / "nodes" / name) if each.leader]

    def processes(self) -> Counter[str]:
        """How many engines run on each node, which has one GPU."""
        return Counter(each.marker.node for each in self.leaders())

    def pids(self) -> set[int]:
        """Of engines."""
        return {each.pid for each in self.leaders()}

    def boot(self, name: str) -> str:
        """Which start of the node's agent is heard."""
        return str(self.rows(f"SELECT agent_boot FROM fleet_node WHERE name = '{name}'")[0][0])


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    if why := impossible():
        print(f"\nSKIPPED, and nothing is known about several machines: {why}", file=sys.stderr)
        pytest.skip(f"no machines to test with: {why}")
    folder = Path(tempfile.mkdtemp(prefix="twinpool-machines-"))
    folder.chmod(0o711)
    with machines(3) as (home, *others):
        stack = MachineStack(folder / "stack", home)
        nodes = {"a": others[0], "b": others[1]}
        made = Fleet(stack, home, nodes, {name: folder / name for name in nodes})
        try:
            stack.up("--join-address", home.address, "--traffic", "off")
            for name, machine in nodes.items():
                start_agent(made, name, machine, stack.manage("join-token", name).stdout.strip())
            until(lambda: made.rows("SELECT count(*) FROM fleet_gpu") == [(2,)], 120, "two nodes with a GPU each")
            pools = ("--pool", "prefill=1", "--pool", "decode=1", "--kind", "simulated", "--mode", "disaggregated")
            stack.manage("register_model", "m", "--source", "org/m", "--config", str(CONFIG), "--arg", "speed=20", *pools)
            until(lambda: made.ask("is it there")[1].get("path") == "disaggregated", 180, "a request takes both nodes")
            yield made
        finally:
            for agent in made.agents.values():
                agent.kill()
                agent.wait()
            stack.manage("down", check=False)
            shutil.rmtree(folder, ignore_errors=True)


class MachineStack(Stack):
    """A stack on one of the machines."""

    def __init__(self, state: Path, machine: Machine) -> None:
        super().__init__(state, "none")
        self.machine = machine
        self.prefix = machine.command()


def start_agent(fleet: Fleet, name: str, machine: Machine, token: str = "", gpus: int = 1) -> None:
    """As the unit of deploy/ starts it, with simulated GPUs."""
    words = {"--state": str(fleet.folders[name]), "--accelerators": f"sim:{gpus}xh100-sxm"}
    _, *told = shlex.split(unit()["ExecStart"])
    command = [words.get(before, word) for before, word in zip(["", *told], told, strict=False)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("TWINPOOL_")}
    with (fleet.folders[name].parent / f"{name}.log").open("ab") as log:
        fleet.agents[name] = subprocess.Popen(
            machine.command(sys.executable, *command),
            cwd=ROOT,
            env=env | ({names.ENV_JOIN_TOKEN: token} if token else {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def unit() -> dict[str, str]:
    lines = (ROOT / "deploy" / "systemd" / "twinpool-agent.service").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines if line[:1] not in "#[")}


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


@dataclass
class FarRouter:
    """A router on a machine without anything else of the control plane; its secret is a copy."""

    fleet: Fleet
    machine: Machine
    folder: Path
    port: int = 8100

    @property
    def secret(self) -> Path:
        return self.folder / "fleet.key"

    def carry(self) -> None:
        """As docs/access.md says: `export` there, `import` here."""
        told = self.fleet.stack.manage("fleet-secret", "export").stdout
        command = self.machine.command(sys.executable, "manage.py", "fleet-secret", "import", "--file", str(self.secret))
        subprocess.run(command, cwd=ROOT, input=told, text=True, check=True, capture_output=True, timeout=240)

    def start(self) -> subprocess.Popen[bytes]:
        ends, home = self.fleet.stack.endpoints, self.fleet.home.address
        env = {key: value for key, value in os.environ.items() if not key.startswith("TWINPOOL_")}
        env[names.ENV_VALKEY_URL] = f"redis://:{ends.valkey_password}@{home}:{ends.valkey_port}/0"
        env[names.ENV_FLEET_SECRET_FILE] = str(self.secret)
        words = ("--valkey", "--port", str(self.port), "--id", "far", "--cache", str(self.folder / "table.json"))
        command = self.machine.command(sys.executable, "-m", "controlplane.router", *words)
        with (self.folder / "router.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@dataclass
class Streams:
    """Streams through a router, one after the other, asked on its own machine."""

    machine: Machine
    url: str
    wrong: list[str] = field(default_factory=list)
    whole: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        body = BODY | {"stream": True, "max_tokens": 40}
        number = 0
        while not self.stop.wait(0.1):
            number += 1
            try:
                answer = self.machine.inside(
                    lambda number=number: ask(self.url, "completions", body | {"prompt": f"stream {number}"}, timeout_s=120)  # type: ignore[misc]
                )
            except (httpx.HTTPError, ValueError) as error:
                self.wrong.append(repr(error))
                continue
            if answer.status == 200 and answer.done and not answer.error:
                self.whole += 1
            else:
                self.wrong.append(f"{answer.status} {answer.error}")


def behind(fleet: Fleet) -> list[str]:
    told = json.loads(fleet.stack.manage("rotate_secret", "status").stdout.splitlines()[-1])
    return list(told["behind"])


def test_secrets_are_changed_on_all_machines_and_no_stream_is_lost(fleet: Fleet, tmp_path: Path) -> None:
    """The fleet secret, engine keys and the broker's user of a node, with a router on a machine of its own."""
    stack, far = fleet.stack, FarRouter(fleet, fleet.nodes["a"], tmp_path)
    fleet.folders["c"] = next(iter(fleet.folders.values())).with_name("c")  # room for engines that start anew
    start_agent(fleet, "c", fleet.home, stack.manage("join-token", "c").stdout.strip(), gpus=2)
    far.carry()
    router = far.start()
    streams = [Streams(fleet.home, stack.router_url), Streams(far.machine, f"http://127.0.0.1:{far.port}")]
    asking = [threading.Thread(target=each.run) for each in streams]
    try:
        until(lambda: far.machine.inside(lambda: httpx.get(f"{streams[1].url}/readyz").status_code == 200), 120, "it serves")
        until(lambda: fleet.rows("SELECT count(*) FROM fleet_gpu") == [(4,)], 120, "there is room")
        for each in asking:
            each.start()
        until(lambda: min(each.whole for each in streams) > 1, 120, "streams")

        stack.manage("rotate_secret", "prepare")
        stack.manage("rotate_secret", "distribute")
        refused = stack.manage("rotate_secret", "switch", check=False)
        assert refused.returncode and "router far has not the new key yet" in refused.stderr
        far.carry()
        until(lambda: behind(fleet) == [], 120, "all have the next secret")
        stack.manage("rotate_secret", "switch")
        far.carry()
        stack.manage("roll_out", "m", "--wait", timeout_s=600)
        stack.manage("rotate_secret", "finish")
        far.carry()
        assert far.secret.read_bytes() == stack.secret()
        before = [each.whole for each in streams]
        until(lambda: all(now.whole > then + 3 for now, then in zip(streams, before, strict=True)), 120, "all serve on")

        kept = fleet.folders["b"] / "secrets" / "join.json"
        former = json.loads(kept.read_text())["valkey_url"]
        boot, agent = fleet.boot("b"), fleet.agents["b"]
        token = stack.manage("join-token", "b").stdout.strip()
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
        start_agent(fleet, "b", fleet.nodes["b"], token)
        until(lambda: fleet.boot("b") not in ("", boot), 120, "the node with its new user is heard")
        assert json.loads(kept.read_text())["valkey_url"] != former
        with pytest.raises(redis.AuthenticationError):
            fleet.nodes["b"].inside(lambda: redis.Redis.from_url(former).ping())
        before = [each.whole for each in streams]
        until(lambda: all(now.whole > then + 3 for now, then in zip(streams, before, strict=True)), 120, "all serve on")
    finally:
        for each in streams:
            each.stop.set()
        for thread in asking:
            if thread.ident:
                thread.join(150)
        router.kill()
        router.wait()
    assert [each.wrong for each in streams] == [[], []]
    print(f"{sum(each.whole for each in streams)} streams whole, 0 lost, while all secrets were changed")

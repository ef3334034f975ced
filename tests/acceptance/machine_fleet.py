"""A stack on a machine of its own (a network namespace), and agents that have joined it from two others."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from machines import Machine, impossible, machines
from stack import ROOT, Stack, ask, until

from controlplane.core import names
from workers.processes import Marked, marked

CONFIG = ROOT / "controlplane" / "physics" / "model_configs" / "qwen3-8b.json"
BODY: dict[str, Any] = {"model": "m", "max_tokens": 8, "ignore_eos": True}


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


@contextmanager
def machine_fleet() -> Iterator[Fleet]:
    """Where no machines can be made the tests are skipped and say why."""
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

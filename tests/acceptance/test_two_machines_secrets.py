"""New secrets on all machines, and no stream is lost: after test_two_machines, on the same machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import redis
from machine_fleet import BODY, Fleet, start_agent
from machines import Machine
from stack import ROOT, ask, until

from controlplane.core import names

pytestmark = pytest.mark.timeout(1200)


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

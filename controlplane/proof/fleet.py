"""A stack of its own in a temporary state folder, for a proof: started, looked at, hurt, and cleared away on every exit.

Nothing of the caller's environment but where programs are reaches it, so that no running stack is touched. A watchdog
(stack/lifeline.py) stops it and removes its folder even if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import redis

from controlplane.core import names, signing
from controlplane.core.codec import WrongShape, decode
from controlplane.core.protocol import AgentFact, RoutingTable
from controlplane.stack import detach, endpoints, leftovers, lifeline, record
from controlplane.stack.folder import StateFolder

KEPT = frozenset({names.ENV_VLLM_PYTHON, names.ENV_POSTGRES_BIN, names.ENV_VALKEY_BIN, names.ENV_BOOTSTRAP})
"""Variables that tell where programs are, and nothing of a stack."""
_STOP_S = 20.0


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without anything that names a stack, its servers or its secrets."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT or not (name.startswith("TWINPOOL_") or name == "DJANGO_SETTINGS_MODULE")
    }


class Fleet:
    """A running stack."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self.endpoints = endpoints.load(state)
        self.secret = state.fleet_secret()
        self.valkey = redis.Redis.from_url(self.endpoints.valkey_url, socket_timeout=5, socket_connect_timeout=3)

    @property
    def router_port(self) -> int:
        return self.endpoints.router_port

    def adopt_environment(self) -> None:
        """Make this process one of the stack's: Django then uses its database."""
        for name in os.environ.keys() - own_environment(os.environ).keys():
            del os.environ[name]
        os.environ |= endpoints.stored_environment(self.state)
        os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"

    def processes(self) -> dict[str, record.Running]:
        """The supervised processes by name."""
        known = record.read(self.state)
        return {each.name: each for each in known.processes} if known else {}

    def all_ready(self) -> bool:
        """Whether every supervised process answers."""
        states = {each.state for each in self.processes().values() if each.is_alive()}
        return states == {"ready"} and all(each.is_alive() for each in self.processes().values())

    def kill(self, name: str) -> bool:
        """`kill -9` of one supervised process. False if it does not run."""
        running = self.processes().get(name)
        return running is not None and running.is_alive() and self.kill_pid(running.pid)

    def kill_pid(self, pid: int) -> bool:
        """False if there is no such process."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def table(self) -> RoutingTable | None:
        """The published one; None if there is none that can be read."""
        envelope = self.valkey.get(names.TABLE_KEY)
        try:
            return decode(RoutingTable, signing.unseal(signing.table_key(self.secret), _bytes(envelope)))
        except (signing.BadSignature, WrongShape):
            return None

    def agent(self, node: str) -> AgentFact | None:
        """What the agent of a node tells now; None if it is silent."""
        envelope = self.valkey.get(names.fact_key("agent", node))
        try:
            return decode(AgentFact, signing.unseal(signing.node_key(self.secret, node), _bytes(envelope)))
        except (signing.BadSignature, WrongShape):
            return None


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


@contextlib.contextmanager
def started(scene: str, say: Callable[[str], None], *options: str, logs: Path | None = None) -> Iterator[Fleet]:
    """`up --fleet SCENE` without traffic. Its logs are copied to the folder `logs` at the end. Raises StackError when it
    does not come up."""
    folder = Path(tempfile.mkdtemp(prefix="twinpool-proof-"))
    watchdog = subprocess.Popen(
        [sys.executable, lifeline.__file__, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    supervisor: subprocess.Popen[bytes] | None = None
    assert watchdog.stdin
    try:
        state = StateFolder(folder).create()
        arguments = ("--fleet", scene, "--traffic", "off", "--port", "0", "--router-port", "0", *options)
        reading, writing = os.pipe()
        supervisor = detach.spawn(state, arguments, writing, own_environment(os.environ))
        watchdog.stdin.write(f"{supervisor.pid} {int(signal.SIGTERM)}\n".encode())
        watchdog.stdin.flush()
        os.close(writing)
        detach.follow(reading, supervisor, state, say)
        yield Fleet(state)
    finally:
        if supervisor is not None:
            _stop(supervisor, StateFolder(folder))
            if logs is not None:
                with contextlib.suppress(OSError):  # a full disk must not keep the rest from being cleared away
                    shutil.copytree(StateFolder(folder).logs, logs, dirs_exist_ok=True)
        watchdog.stdin.close()
        watchdog.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _stop(supervisor: subprocess.Popen[bytes], state: StateFolder) -> None:
    """The whole stack, in order; what outlives its supervisor too."""
    supervisor.terminate()
    try:
        supervisor.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
    leftovers.stop_leftovers(state, with_engines=True)

"""A whole stack started with `manage.py up --detach`, and the questions the acceptance tests ask it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import psycopg
import redis

from controlplane.core import names, signing
from controlplane.core.codec import decode
from controlplane.core.protocol import AgentFact, EngineFact, EngineRoute, ModelRoute, RoutingTable
from controlplane.stack import endpoints
from controlplane.stack.folder import StateFolder
from controlplane.stack.supervisor import family

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


def until(question: Callable[[], T], within_s: float = 60.0, what: str = "") -> T:
    """The first true answer. Errors of a service that is down right now count as no answer."""
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if answer := question():
                return answer
            last = answer
        except (httpx.HTTPError, redis.RedisError, psycopg.Error, psutil.Error, KeyError, StopIteration) as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"not within {within_s:g} s: {what or question}; last answer: {last!r}")


@dataclass
class Answer:
    """One answer of the OpenAI API, whichever way it came."""

    status: int
    route: dict[str, str]
    text: str
    usage: dict[str, Any] | None
    done: bool
    error: dict[str, Any] | None = None

    @property
    def said(self) -> tuple[int, bool, str, dict[str, int]]:
        """What must not depend on the way: status, a proper end, text, token counts (cached tokens depend on who cached)."""
        counts = {name: number for name, number in (self.usage or {}).items() if name != "prompt_tokens_details"}
        return (self.status, self.done, self.text, counts)


class Stack:
    """The stack of one state folder. Reads its secrets as the processes do."""

    def __init__(self, state: Path, fleet: str) -> None:
        self.state = state
        self.fleet = fleet
        self.prefix: list[str] = []
        """What comes before each command: how another machine is entered."""

    # --- running it

    def manage(self, *arguments: str, check: bool = True, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TWINPOOL_")}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        done = subprocess.run(
            [*self.prefix, sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment | {names.ENV_STATE: str(self.state)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise AssertionError(f"manage.py {' '.join(arguments)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def up(self, *options: str) -> str:
        """Start it; returns what was printed."""
        ports = ("--port", "0", "--router-port", "0")
        return self.manage("up", "--fleet", self.fleet, "--detach", *ports, *options, timeout_s=480).stdout

    def down(self) -> None:
        self.manage("down")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.manage("status", "--json", check=False).stdout)
        return status

    def pid(self, name: str) -> int:
        return int(next(each["pid"] for each in self.status()["processes"] if each["name"] == name))

    def pids(self) -> set[int]:
        """Every process of this stack: supervisor, services, their children, engines."""
        marker = f"{names.ENV_STATE}={self.state}".encode()
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                if (
                    marker in environment.split(b"\0") or str(self.state).encode() in environment
                ) and process.status() != "zombie":
                    found.add(process.pid)
        return found - {os.getpid()}

    def kill(self, name: str) -> int:
        """`kill -9` of one process, as if its machine had lost it. Returns its pid."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def restarted(self, name: str, old_pid: int) -> None:
        until(
            lambda: any(
                each["name"] == name and each["pid"] != old_pid and each["state"] == "ready"
                for each in self.status()["processes"]
            ),
            what=f"{name} is started again",
        )

    @contextlib.contextmanager
    def frozen(self, *services: str) -> Iterator[None]:
        """These services, with their children, answer nothing while the block runs."""
        processes = [each for name in services for each in family(self.pid(name))]
        try:
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # a connection's process ends with the connection
                    each.send_signal(signal.SIGSTOP)
            yield
        finally:
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)

    # --- what it knows

    @property
    def endpoints(self) -> endpoints.Endpoints:
        return endpoints.load(StateFolder(self.state))

    @property
    def router_url(self) -> str:
        return f"http://127.0.0.1:{self.endpoints.router_port}"

    @property
    def console_url(self) -> str:
        return f"http://127.0.0.1:{self.endpoints.console_port}"

    def valkey(self) -> redis.Redis:
        return redis.Redis.from_url(self.endpoints.valkey_url)

    def secret(self) -> bytes:
        return (self.state / "secrets" / "fleet.key").read_bytes()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.endpoints.database_url) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]

    def table(self) -> RoutingTable:
        with self.valkey() as client:
            return decode(RoutingTable, signing.unseal(signing.table_key(self.secret()), client.get(names.TABLE_KEY)))

    def model(self, name: str) -> ModelRoute:
        return next(model for model in self.table().models if model.name == name)

    def engines(self, node: str) -> dict[str, EngineFact]:
        """What the agent of this node says of its engines."""
        with self.valkey() as client:
            key = signing.node_key(self.secret(), node)
            fact = decode(AgentFact, signing.unseal(key, client.get(names.fact_key("agent", node)) or b""))
        return {engine.id: engine for engine in fact.engines}

    # --- talking to it

    def ask(self, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> Answer:
        return ask(self.router_url, path, body, timeout_s=timeout_s)

    def ask_engine(self, engine: EngineRoute, path: str, body: dict[str, Any]) -> Answer:
        """Straight to one engine, past the router: the monolithic answer to compare with."""
        key = signing.engine_key(signing.node_key(self.secret(), engine.node), engine.id, engine.incarnation)
        return ask(engine.url, path, body, {"authorization": f"Bearer {key}"})


def ask(url: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None, timeout_s: float = 60.0) -> Answer:
    """One request of the OpenAI API, streamed if the body says so."""
    with httpx.Client(timeout=timeout_s, trust_env=False) as client:
        response = client.post(f"{url}/v1/{path}", json=body, headers=headers or {})
    if response.status_code != 200:
        return Answer(response.status_code, _route(response), "", None, False, response.json()["error"])
    if body.get("stream"):
        return _streamed(response)
    document = response.json()
    return Answer(200, _route(response), _text(document["choices"][0], "message"), document["usage"], True)


def _streamed(response: httpx.Response) -> Answer:
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    answer = Answer(200, _route(response), "", None, done=events[-1:] == ["[DONE]"])
    for event in map(json.loads, events[:-1] if answer.done else events):
        answer.error = event.get("error") or answer.error
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices", []):
            answer.text += _text(choice, "delta")
    return answer


def _text(choice: dict[str, Any], of: str) -> str:
    return choice[of].get("content") or "" if of in choice else choice.get("text") or ""


def _route(response: httpx.Response) -> dict[str, str]:
    path, *rest = response.headers.get("x-twinpool-route", "").split("; ")
    return {"path": path} | dict(part.split("=", 1) for part in rest)


@contextlib.contextmanager
def started(fleet: str, traffic: str = "off") -> Iterator[Stack]:
    """The fleet, by default without its traffic, in a state folder of its own, stopped at the end: then nothing of it may be
    left."""
    state = Path(tempfile.mkdtemp(prefix=f"twinpool-{fleet}-"))
    stack = Stack(state, fleet)
    try:
        stack.up("--traffic", traffic)
        yield stack
        stack.down()
        assert stack.pids() == set()
    finally:
        stack.manage("down", check=False)
        shutil.rmtree(state, ignore_errors=True)

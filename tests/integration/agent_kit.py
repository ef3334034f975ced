"""Runs real agents for tests: processes on a real Valkey, told by signed commands, watched through their facts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import psutil
import redis
from celery import Celery

from controlplane.core import names
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import AgentFact, Command, EngineFact, EngineSpec, Rank, Record
from controlplane.core.signing import seal, unseal
from workers.processes import marked

ROOT = Path(__file__).parents[2]
TASKS = {
    "start": names.TASK_START_ENGINE,
    "stop": names.TASK_STOP_ENGINE,
    "drain": names.TASK_DRAIN_ENGINE,
    "undrain": names.TASK_DRAIN_ENGINE,
    "list_engines": names.TASK_LIST_ENGINES,
    "tail_log": names.TASK_TAIL_LOG,
}


def until(what: str, check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The first true value of `check`."""
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not {what} after {timeout_s:g} s"
        time.sleep(0.05)
    return value


class AgentKit:
    """One node: its folder, its key and its agent process, which a test may kill and start again."""

    def __init__(self, url: str, folder: Path, command: tuple[str, ...] = (), accelerators: str = "sim:4xh100-sxm") -> None:
        self.url, self.folder, self.node = url, folder, f"n-{secrets.token_hex(3)}"
        self.state = folder / "state"
        self.key = secrets.token_bytes(32)
        self.key_file = folder / "node.key"
        self.key_file.write_bytes(self.key)
        self.key_file.chmod(0o600)
        self.log = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command or (str(Path(__file__).with_name("agent_main.py")),)
        self._accelerators = accelerators
        self._options: tuple[str, ...] = ()
        self._valkey = redis.Redis.from_url(url)
        self._valkey.delete(names.TELEMETRY_STREAM)  # other tests leave hostile records there
        self._celery = Celery("test", broker=url, backend=url)
        self._celery.conf.update(task_ignore_result=True, result_expires=60)

    # --- The process

    def start(self, *options: str) -> AgentKit:
        """Returns when the new agent tells its fact."""
        self._options = options or self._options
        boot = self._boot()
        self.spawn()
        until("telling its fact", lambda: self._boot() not in ("", boot))
        return self

    def spawn(self) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable, *self._command, "--node", self.node, "--state", str(self.state), "--address", "127.0.0.1",
            "--accelerators", self._accelerators, *self._options,
        ]  # fmt: skip
        env = {
            **os.environ,
            names.ENV_VALKEY_URL: self.url,
            names.ENV_NODE_KEY_FILE: str(self.key_file),
            "PYTHONPATH": str(ROOT),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        return self.process

    def _boot(self) -> str:
        fact = self.fact_or_none()
        return fact.boot if fact else ""

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals, within_s: float) -> int:
        """Sends a signal and returns the exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.kill()
        for each in self.engine_processes():
            each.kill()
        self._celery.close()
        self._valkey.close()

    def engine_processes(self, engine: str = "") -> list[psutil.Process]:
        """The living processes of one engine, or of all."""
        found = marked(self.state.resolve())
        return [psutil.Process(each.pid) for each in found if engine in ("", each.marker.engine)]

    # --- Commands

    def spec(self, engine: str = "e-1", generation: int = 1, gpus: tuple[int, ...] = (0,), **changes: Any) -> EngineSpec:
        fields: dict[str, Any] = {
            "model": "m",
            "source": "org/m",
            "connector": "none",
            "kind": "simulated",
            "ranks": (Rank(self.node, tuple(f"sim-{self.node}-{index}" for index in gpus)),),
        }
        return EngineSpec(id=engine, spec_generation=generation, **{**fields, **changes})

    def run_engine(self, engine: str = "e-1", generation: int = 1, gpus: tuple[int, ...] = (0,), **args: Any) -> EngineFact:
        """Starts an engine and returns its fact when it is ready."""
        self.send("start", spec=self.spec(engine, generation, gpus, args=args))
        return self.engine_when("ready", engine, generation)

    def send(self, verb: str, **fields: Any) -> None:
        self._dispatch(verb, self.envelope(verb, **fields), ignore_result=True)

    def send_envelope(self, verb: str, envelope: object) -> None:
        self._dispatch(verb, envelope, ignore_result=True)

    def ask(self, verb: str, **fields: Any) -> Any:
        return self.ask_envelope(verb, self.envelope(verb, **fields))

    def ask_envelope(self, verb: str, envelope: object) -> Any:
        result = self._dispatch(verb, envelope, ignore_result=False)
        return result.get(timeout=60)

    def envelope(self, verb: str, key: bytes | None = None, **fields: Any) -> str:
        if "spec" in fields:
            fields.setdefault("spec_generation", fields["spec"].spec_generation)
        fields = {"node": self.node, "issued_at": time.time(), **fields}
        return seal(key or self.key, encode(Command(verb=verb, **fields)))  # type: ignore[arg-type]

    def _dispatch(self, verb: str, envelope: object, *, ignore_result: bool) -> Any:
        return self._celery.send_task(
            TASKS[verb], args=[envelope], queue=names.node_queue(self.node), ignore_result=ignore_result
        )

    # --- What it tells

    def fact_or_none(self) -> AgentFact | None:
        raw = self._valkey.get(names.fact_key("agent", self.node))
        return decode(AgentFact, unseal(self.key, raw)) if raw else None  # type: ignore[arg-type]

    def fact(self) -> AgentFact:
        fact = self.fact_or_none()
        assert fact, "the agent tells nothing"
        return fact

    def engine(self, engine: str = "e-1") -> EngineFact | None:
        fact = self.fact_or_none()
        return next((each for each in fact.engines if each.id == engine), None) if fact else None

    def engine_when(self, state: str, engine: str = "e-1", generation: int = 1, timeout_s: float = 60.0) -> EngineFact:
        def check() -> EngineFact | None:
            fact = self.engine(engine)
            return fact if fact and fact.state == state and fact.spec_generation >= generation else None

        found: EngineFact = until(f"{engine} is {state} ({self.engine(engine)})", check, timeout_s)
        return found

    def logged(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def wait_logged(self, text: str) -> None:
        until(f"logging {text!r}", lambda: self.logged(text))

    def records(self) -> list[Record]:
        """The telemetry of this node so far."""
        entries = self._valkey.xrange(names.TELEMETRY_STREAM)
        records = [decode(Record, msgpack.unpackb(fields[b"r"])) for _, fields in entries]
        return [record for record in records if record.source == f"agent:{self.node}"]

    def engine_folder(self, fact: EngineFact) -> Path:
        return self.state / "engines" / f"{fact.id}.{fact.rank}" / str(fact.incarnation)

"""The indexer as its own process, real engines that tell it what they hold, and somebody who asks it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.protocol import EngineRoute, ModelRoute
from controlplane.indexer import wire
from tests.integration.router_kit import write_table
from tests.integration.router_process import RouterProcess, router_process
from tests.simulated_engines import KEY, MODEL, RunningEngine, free_port, running, spec, until

ROOT = Path(__file__).parents[2]
PATIENT = ("--indexer-ms", "10000")
"""For tests of what is answered, not of how soon."""


@dataclass
class Indexer:
    path: Path
    port: int
    log: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        begun = self.log.read_bytes().count(b"listens") if self.log.exists() else 0
        command = [sys.executable, "-m", "controlplane.indexer", "--socket", str(self.path), "--events", self.endpoint]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self.options], stderr=log, cwd=ROOT)
        until(lambda: self.log.read_bytes().count(b"listens") > begun or (self.process and self.process.poll() is not None))
        assert self.process.poll() is None, self.log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def status(self) -> dict[str, Any]:
        return dict(self.ask([wire.STATUS, 1])[1])

    def engine(self, name: str) -> dict[str, Any]:
        """What it holds of an engine."""
        return dict(self.status()["engines"].get(name, {"blocks": 0, "whole": False, "next": 0}))

    def ask(self, *messages: list[Any]) -> list[Any]:
        """The answer to the last of `messages`."""
        reader = wire.Reader()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self.path))
            connection.sendall(b"".join(map(wire.pack, messages)))
            while data := connection.recv(1 << 16):
                for answer in reader.feed(data):
                    return answer
        raise AssertionError("it did not answer")

    def held(self, engines: dict[str, str], body: dict[str, Any], path: str = "/v1/completions", **more: Any) -> list[Any]:
        """[prompt tokens, {engine: [tokens, whole]}] for a body; `engines`: id -> url. `more`: adapter, salt, salts."""
        model = body.get("model", MODEL)
        rows = [[id, 1, url, model] for id, url in engines.items()]
        question = [path, model, more.get("adapter", ""), more.get("salt", ""), more.get("salts", {})]
        return self.ask([wire.ENGINES, rows], [wire.ASK, 7, *question, json.dumps(body).encode()])[1:]


@contextmanager
def indexing(folder: Path, *options: str) -> Iterator[Indexer]:
    indexer = Indexer(folder / "indexer.sock", free_port(), folder / "indexer.log", options)
    indexer.start()
    try:
        yield indexer
    finally:
        assert indexer.process is not None
        if indexer.process.poll() is None:
            indexer.kill()


@dataclass
class Fleet:
    indexer: Indexer
    engines: dict[str, RunningEngine] = field(default_factory=dict)

    @property
    def urls(self) -> dict[str, str]:
        return {name: engine.url for name, engine in self.engines.items()}

    def settle(self, name: str) -> None:
        """Until everything that the engine holds is known: it begins anew, with its cache cleared."""

        def whole() -> bool:
            self.engines[name].http.post("/reset_prefix_cache")
            self.engines[name].text("a word of no weight", max_tokens=20)
            return bool(self.indexer.engine(name)["whole"])

        until(whole)

    def serve(self, name: str, body: dict[str, Any], path: str = "/v1/completions") -> None:
        """One engine serves a request behind the router's back, and has told of it."""
        answer = self.engines[name].http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()["usage"]["prompt_tokens"]
        salt = body.get("cache_salt", "")
        until(lambda: self.indexer.held(self.urls, body, path, salt=salt)[1].get(name, [0])[0] >= tokens - 16)

    @contextmanager
    def router(self, folder: Path, *options: str, **fields: Any) -> Iterator[RouterProcess]:
        """A router in front of all engines."""
        routes = tuple(EngineRoute(name, url, "mixed", engine_key=KEY) for name, url in self.urls.items())
        table = folder / "table.json"
        write_table(table, [ModelRoute(MODEL, "monolithic", routes, **fields)])
        with router_process(folder, "", "--table", str(table), "--indexer", str(self.indexer.path), *options) as router:
            until(lambda: router.generation() == 1)
            until(lambda: "asks the indexer" in router.log())
            yield router


@contextmanager
def fleet(folder: Path, *names: str, args: dict[str, Any] | None = None) -> Iterator[Fleet]:
    """Engines, and an indexer that knows all of what they hold."""
    with ExitStack() as stack:
        made = Fleet(stack.enter_context(indexing(folder)))
        for name in names or ("e1", "e2", "e3"):
            wanted = spec(name, connector="none", kv_events={"endpoint": made.indexer.endpoint}, args=args or {})
            made.engines[name] = stack.enter_context(running(folder, wanted))
        for name in made.engines:
            made.settle(name)
        yield made

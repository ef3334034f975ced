"""The real router in front of real engines, told by a routing table file which engine does what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, Connector, EngineRoute, ModelRoute, RoutingTable
from tests.vllm.harness import BLOCK, HOST, KV_LEASE_S, MODEL, RealEngine, wait_for
from workers import ports


@dataclass
class RouterProcess:
    url: str
    table: Path
    generation: int = 0

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[RouterProcess]:
        port = ports.choose(HOST, 0, 0, ())
        router = cls(f"http://{HOST}:{port}", folder / "table.json")
        router._write(())
        command = [sys.executable, "-m", "controlplane.router", "--table", str(router.table), "--host", HOST]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: router._alive(process, folder / "log"), 30, "the router to answer")
            yield router
        finally:
            process.kill()
            process.wait(10)

    def route(self, prefill: RealEngine, decode: RealEngine, connector: Connector, **changes: Any) -> None:
        """Gives the roles and waits until requests take them. `changes` replace fields of the model's route."""
        engines = tuple(
            EngineRoute(engine.id, engine.url, role, engine_key=engine.key)  # type: ignore[arg-type]
            for engine, role in ((prefill, "prefill"), (decode, "decode"))
        )
        route = ModelRoute(
            MODEL,
            "disaggregated",
            engines,
            connector=connector,
            kv_lease_s=KV_LEASE_S,
            block_size=BLOCK,
            strict=True,
        )
        self._write((replace(route, **changes),))
        wanted = f"disaggregated; prefill={prefill.id}; decode={decode.id}"
        body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1}
        wait_for(lambda: wanted in self.post("/v1/completions", body).headers["x-twinpool-route"], 20, wanted)

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=dict(body), timeout=120)

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A good answer that went through a prefill and a decode engine."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        assert response.headers["x-twinpool-route"].startswith("disaggregated; "), response.headers
        document: dict[str, Any] = response.json()
        return document

    def events(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The events of a streamed answer, which must end with [DONE]."""
        with httpx.stream("POST", self.url + path, json={**body, "stream": True}, timeout=120) as response:
            assert response.status_code == 200
            assert response.headers["x-twinpool-route"].startswith("disaggregated; "), response.headers
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def _write(self, models: tuple[ModelRoute, ...]) -> None:
        self.generation += 1
        making = self.table.with_suffix(".new")
        making.touch(mode=0o600)
        making.write_text(json.dumps(encode(RoutingTable(VERSION, self.generation, models=models))))
        making.rename(self.table)

    def _alive(self, process: subprocess.Popen[bytes], log: Path) -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(self.url + "/livez", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

"""The router as its own process, told by Valkey and asked over HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgpack
import redis

from controlplane.core import names, signing
from controlplane.core.codec import decode, encode
from controlplane.core.protocol import VERSION, ModelRoute, RouterFact, RoutingTable
from tests.integration.agent_kit import until

SECRET = bytes(range(32))


@dataclass
class RouterProcess:
    process: subprocess.Popen[bytes]
    log_file: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"{socket.gethostname()}-{self.port}"

    def log(self) -> str:
        return self.log_file.read_text()

    def post(self, body: Any, path: str = "/v1/completions") -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=90, trust_env=False)

    def generation(self) -> int:
        table = httpx.get(self.url + "/readyz", trust_env=False).json()["table"]
        return int(table["generation"]) if table else 0

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def router_process(folder: Path, valkey_url: str = "", *options: str, secret: bytes = SECRET) -> Iterator[RouterProcess]:
    """A router that listens, with this fleet secret."""
    key = folder / "fleet.key"
    key.write_bytes(secret)
    key.chmod(0o600)
    env = {**os.environ, names.ENV_FLEET_SECRET_FILE: str(key), names.ENV_VALKEY_URL: valkey_url}
    log_file = folder / "router.log"
    with log_file.open("ab") as log:
        command = [sys.executable, "-m", "controlplane.router", "--port", "0", *options]
        process = subprocess.Popen(command, env=env, stderr=log, cwd=Path(__file__).parents[2])
    router = RouterProcess(process, log_file)
    begun = len(router.log())
    listens = re.compile(r"listens on 127\.0\.0\.1:(\d+)")
    try:
        found = until("listening", lambda: listens.search(router.log(), begun) or process.poll())
        assert isinstance(found, re.Match), router.log()
        router.port = int(found[1])
        yield router
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def table(generation: int, *models: ModelRoute, epoch: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = encode(RoutingTable(VERSION, generation, epoch, models=models))
    return document


def publish(valkey: redis.Redis, document: Any, key: bytes | None = None) -> None:
    valkey.set(names.TABLE_KEY, signing.seal(key or signing.table_key(SECRET), document))
    valkey.publish(names.TABLE_CHANNEL, "changed")


def fact_of(valkey: redis.Redis, router: RouterProcess) -> RouterFact | None:
    envelope = valkey.get(names.fact_key("router", router.id))
    return decode(RouterFact, signing.unseal(signing.router_key(SECRET), envelope)) if envelope else None  # type: ignore[arg-type]


def rows_of(valkey: redis.Redis, kind: str) -> list[dict[str, Any]]:
    """All rows of a kind on the telemetry stream, oldest first."""
    records = [msgpack.unpackb(fields[b"r"]) for _, fields in valkey.xrange(names.TELEMETRY_STREAM)]  # type: ignore[union-attr]
    return [row for record in records if record["kind"] == kind for row in record["rows"]]

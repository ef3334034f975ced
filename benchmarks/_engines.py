"""Simulated engine processes for benchmarks, started by their driver as an agent does, and a streaming client for them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.core.protocol import EngineSpec, Rank
from controlplane.physics.catalog import read_config
from workers.engines.base import Place
from workers.engines.simulated import driver

HOST = "127.0.0.1"
KEY = "benchmark"
MODEL = "llama-3.1-8b"
READY_S = 180.0


@dataclass(frozen=True)
class EngineProcess:
    pid: int
    port: int


def spec(name: str, model: str = MODEL, gpu: str = "h100-sxm", tp: int = 1, network_gbps: float = 100.0) -> EngineSpec:
    """One engine in real time."""
    return EngineSpec(
        id=name,
        model=model,
        source=model,
        connector="nixl",
        ranks=(Rank("node", tuple(f"GPU-{name}-{index}" for index in range(tp))),),
        kind="simulated",
        spec_generation=1,
        tensor_parallel=tp,
        gpu_kind=gpu,
        model_config=read_config(model),
        network_gbps=network_gbps,
        args={"speed": 1.0, "max_model_len": 16384},
    )


@contextmanager
def running(specs: Sequence[EngineSpec]) -> Iterator[list[EngineProcess]]:
    """Ready engines, ended when the block is left."""
    folder = Path(tempfile.mkdtemp(prefix="twinpool-bench-"))
    processes: list[subprocess.Popen[bytes]] = []
    logs: list[Path] = []
    try:
        for each in specs:
            own = folder / each.id
            own.mkdir()
            launch = driver.launch(each, 0, Place(HOST, 0, 0, own, folder, 1, KEY))
            logs.append(own / "log")
            with logs[-1].open("wb") as log:
                processes.append(subprocess.Popen(launch.argv, env=dict(launch.env), cwd=own, stderr=log))
        ready = [_port(process, log) for process, log in zip(processes, logs, strict=True)]
        yield [EngineProcess(process.pid, port) for process, port in zip(processes, ready, strict=True)]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + READY_S
    while not (said := re.search(r"port (\d+), side port", text := log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"an engine did not start: {text}")
        time.sleep(0.05)
    return int(said[1])


async def stream(engine: EngineProcess, path: str, body: dict[str, Any]) -> list[float]:
    """Sends a streamed request; when each of its events with text came (time.monotonic)."""
    reader, writer = await asyncio.open_connection(HOST, engine.port)
    try:
        await _send(writer, path, body | {"stream": True})
        times: list[float] = []
        rest = b""
        while data := await reader.read(1 << 16):
            now = time.monotonic()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            times += [now for line in lines if line.startswith(b"data: {") and b'"finish_reason":null' in line]
            if b"[DONE]" in data:
                return times
        raise SystemExit(f"an engine broke off: {rest[:200]!r}")
    finally:
        writer.close()


async def ask(engine: EngineProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Sends a request that is answered whole."""
    reader, writer = await asyncio.open_connection(HOST, engine.port)
    try:
        await _send(writer, path, body)
        head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
        if b" 200 " not in head[:20]:
            raise SystemExit(f"an engine refused: {answer[:300]!r}")
        document: dict[str, Any] = json.loads(answer)
        return document
    finally:
        writer.close()


async def _send(writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()

"""Starts real simulated-engine processes for tests, through the driver as an agent does."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from controlplane.core.protocol import EngineRoute, EngineSpec, ModelRoute, Rank
from workers.engines.base import Place
from workers.engines.simulated import driver
from workers.metrics import Page, read_page

T = TypeVar("T")
KEY = "engine-key"
MODEL = "llama"
LLAMA_8B: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def spec(engine: str = "e1", **changes: Any) -> EngineSpec:
    """A one-GPU Llama-3.1-8B; `changes` replace fields, `args` are added to those that make it quick."""
    args = {"max_model_len": 8192, "speed": 20.0} | changes.pop("args", {})
    fields: dict[str, Any] = {
        "id": engine,
        "model": MODEL,
        "source": "meta/llama",
        "connector": "nixl",
        "ranks": (Rank("n1", (f"GPU-{engine}",)),),
        "kind": "simulated",
        "spec_generation": 1,
        "gpu_kind": "h100-sxm",
        "model_config": LLAMA_8B,
        "args": args,
    }
    return EngineSpec(**(fields | changes))


@dataclass
class RunningEngine:
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    side_port: int = 0
    http: httpx.Client = field(default_factory=httpx.Client, repr=False)

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "ignore_eos": True} | fields
        return self.http.post("/v1/completions", json=body)

    def text(self, prompt: Any, **fields: Any) -> str:
        answer = self.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def prefill(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The kv_transfer_params of a prefill leg."""
        handoff = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = self.complete(prompt, **(fields | {"max_tokens": 1, "kv_transfer_params": handoff}))
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["kv_transfer_params"])

    def page(self) -> Page:
        return read_page(self.http.get("/metrics").content)

    def metric(self, line: str) -> float:
        """The value of the sample that begins so, e.g. `vllm:x_total`."""
        found = re.search(rf"^{re.escape(line)}\S* (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found, f"no {line}"
        return float(found[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.kill()


@contextmanager
def running(
    folder: Path, wanted: EngineSpec | None = None, port: int = 0, side_port: int = 0, key: str = KEY
) -> Iterator[RunningEngine]:
    """A ready engine process; killed at the end."""
    wanted = wanted or spec()
    folder = folder / wanted.id
    folder.mkdir(exist_ok=True)
    place = Place("127.0.0.1", port, side_port, folder, folder, 1, key)
    launch = driver.launch(wanted, 0, place)
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(launch.argv, env=dict(launch.env), cwd=folder, stderr=file)
    engine = RunningEngine(process, log)
    try:
        _await_ready(engine)
        yield engine
    finally:
        engine.stop()


def _await_ready(engine: RunningEngine) -> None:
    until(lambda: b"side port" in engine.log.read_bytes() or engine.process.poll() is not None)
    said = re.search(r"port (\d+), side port (\d+)", engine.log.read_text())
    assert said, engine.log.read_text()
    engine.url, engine.side_port = f"http://127.0.0.1:{said[1]}", int(said[2])
    headers = {"Authorization": f"Bearer {KEY}"}
    engine.http.close()
    engine.http = httpx.Client(base_url=engine.url, headers=headers, timeout=90, trust_env=False)


@contextmanager
def meanwhile(call: Callable[[], T]) -> Iterator[Future[T]]:
    """Runs `call` beside the block; its result, or what it raised, comes out of the future, and at the latest at the end."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(call)
        yield running
        running.result()


def until(condition: Any, seconds: float = 60.0) -> None:
    """Waits until `condition()` is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_route(engines: Mapping[str, RunningEngine], **fields: Any) -> ModelRoute:
    """What a router is told of two engines by their ids, the one that prefills first."""
    (prefill, one), (decode, other) = engines.items()
    routes = (
        EngineRoute(prefill, one.url, "prefill", engine_key=KEY),
        EngineRoute(decode, other.url, "decode", engine_key=KEY),
    )
    return ModelRoute(MODEL, "disaggregated", routes, connector="nixl", **fields)

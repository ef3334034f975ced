"""Real vLLM engines for tests: started with the driver and the agent's own process code, stopped whole."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from controlplane.control.handoff import Asked, Endpoint, Outcome, Turn, ask_pair
from controlplane.core.handoff_probe import make_prompt, word_count
from controlplane.core.protocol import Connector, EngineSpec, Rank
from workers import ports
from workers.engines.base import Place
from workers.engines.vllm import driver
from workers.processes import EngineProcess, Marker, child_environment

HOST = "127.0.0.1"
MODEL = "tiny-llama"
BLOCK = 32
KV_LEASE_S = 30
START_S = 300.0
ARGS: Mapping[str, Any] = {
    "block_size": BLOCK,
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "max_model_len": 2048,
    "max_num_seqs": 16,
}


@dataclass(frozen=True)
class RealEngine:
    id: str
    url: str
    key: str
    process: EngineProcess
    log: Path
    shared: Path

    def ask(self, path: str, body: Mapping[str, Any], timeout_s: float = 120.0) -> httpx.Response:
        return httpx.post(
            self.url + path, json=dict(body), headers={"Authorization": f"Bearer {self.key}"}, timeout=timeout_s
        )

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = self.ask(path, body)
        assert response.status_code == 200, response.text
        document: dict[str, Any] = response.json()
        return document

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples called `name` whose labels contain `labels`; 0 when there are none."""
        page = httpx.get(self.url + "/metrics", timeout=30).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by_source(self) -> dict[str, float]:
        """Prompt tokens by where their KV came from."""
        name = "vllm:prompt_tokens_by_source_total"
        return {source: self.metric(name, source=source) for source in ("external_kv_transfer", "local_compute")}


def spec_of(id: str, model: Path, connector: Connector, **changes: Any) -> EngineSpec:
    spec = EngineSpec(
        id=id,
        model=MODEL,
        source=str(model),
        connector=connector,
        ranks=(Rank("n1", (f"cpu-{id}",)),),
        kind="vllm",
        spec_generation=1,
        args=ARGS,
        gpu_kind="cpu",
        kv_lease_s=KV_LEASE_S,
    )
    return replace(spec, **changes)


def start(id: str, model: Path, connector: Connector, folder: Path, **changes: Any) -> RealEngine:
    """`changes` replace fields of its spec."""
    own, shared, log = folder / id, folder / "shared", folder / f"{id}.log"
    own.mkdir()
    shared.mkdir(exist_ok=True)
    port = ports.choose(HOST, 0, 0, ())
    side_port = ports.choose(HOST, 0, 0, (port,))
    key = secrets.token_hex(32)
    place = Place(
        host=HOST, port=port, side_port=side_port, folder=own, shared=shared, incarnation=1, engine_key=key, gpu_indices=(0,)
    )
    launch = driver.launch(spec_of(id, model, connector, **changes), 0, place)
    env = child_environment(os.environ, launch.env, Marker("n1", id, 0, 1), folder)
    return RealEngine(id, f"http://{HOST}:{port}", key, EngineProcess.spawn(launch.argv, env, own, log), log, shared)


def wait_ready(engine: RealEngine) -> None:
    def healthy() -> bool:
        assert engine.process.child and engine.process.child.poll() is None, engine.log.read_text()[-4000:]
        try:
            return httpx.get(engine.url + "/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    wait_for(healthy, START_S, f"{engine.id} to be ready")
    engine.answer("/v1/completions", {"model": MODEL, "prompt": [7], "max_tokens": 1})


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.25)


def stop(engine: RealEngine) -> None:
    engine.process.kill()
    if engine.process.child:
        engine.process.child.wait(30)


@contextmanager
def alone(model: Path, folder: Path, **changes: Any) -> Iterator[RealEngine]:
    """One live engine of the tiny model, without a connector."""
    engine = start("a", model, "none", folder, **changes)
    try:
        wait_ready(engine)
        yield engine
    finally:
        stop(engine)


@contextmanager
def pair(model: Path, connector: Connector, folder: Path, **changes: Any) -> Iterator[tuple[RealEngine, RealEngine]]:
    """Two live engines of the tiny model that can hand off to each other, both started at once."""
    engines: list[RealEngine] = []
    try:
        for id in ("a", "b"):
            engines.append(start(id, model, connector, folder, **changes))
        for engine in engines:
            wait_ready(engine)
        yield engines[0], engines[1]
    finally:
        for engine in engines:
            stop(engine)


def hand_off(prefill: RealEngine, decode: RealEngine, path: str, body: Mapping[str, Any]) -> httpx.Response:
    """The NIXL flow by hand, without a router: one prefill leg, one decode leg."""
    remote = {"do_remote_decode": True, "do_remote_prefill": False}
    leg = prefill.answer(path, {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": remote})
    return decode.ask(path, {**body, "kv_transfer_params": leg["kv_transfer_params"]})


async def probe(prefill: RealEngine, decode: RealEngine, connector: Connector) -> Outcome:
    """One question of a control plane's probe."""
    prompt = make_prompt(word_count(BLOCK, int(ARGS["max_model_len"])), secrets.randbelow)
    asked = Asked(MODEL, prompt, secrets.token_hex(8), connector == "nixl")
    ends = [Endpoint(engine.id, engine.url, engine.key) for engine in (prefill, decode)]
    until = asyncio.get_running_loop().time() + 60.0

    async def tell(_: str) -> None:
        """Nobody else is there to wait for."""

    return await ask_pair(*ends, asked, Turn(until, until, 60.0, tell))


def warm_up(one: RealEngine, other: RealEngine) -> None:
    """Both directions once: the first NIXL handshake of a fresh pair may miss its 5 s deadline on a loaded machine."""
    for prefill, decode in ((one, other), (other, one)):

        def handed_over(prefill: RealEngine = prefill, decode: RealEngine = decode) -> bool:
            body = {"model": MODEL, "prompt": [11] * (2 * BLOCK), "max_tokens": 1, "cache_salt": secrets.token_hex(4)}
            return hand_off(prefill, decode, "/v1/completions", body).status_code == 200

        wait_for(handed_over, 60, f"a first hand-off from {prefill.id} to {decode.id}")

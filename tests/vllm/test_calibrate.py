"""The constants of a real engine, fitted to its own metrics under one load, tell how it serves another.

The machine is shared: it may keep the engine waiting in one second and not in the next. So the two loads take turns, the
turns in which the engine's threads waited least for a processor count, and the median over them is compared with what the
engine's own metrics said in the same seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import psutil
import pytest

from controlplane.core.calibration import Calibration
from controlplane.core.forecast import Arrival, Pool, Settings, simulate_pools
from controlplane.core.modelconfig import Shape, read_shape
from controlplane.physics.calibration import calibrate
from controlplane.physics.catalog import read_config
from controlplane.physics.enginemetrics import EnginePage
from controlplane.physics.scraping import watch
from tests.vllm import harness
from tests.vllm.harness import ARGS, BLOCK, MODEL, RealEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

TURNS = 6
CALM_TURNS = 4
TURN_S = 3.0
WITHIN = 0.25
FAMILIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with harness.alone(tiny_model, tmp_path_factory.mktemp("alone")) as engine:
        yield engine


def fitted_load(turn: int) -> list[Arrival]:
    """All lengths, at another rate each turn."""
    return load(turn, (2.0, 5.0, 8.0)[turn % 3], (10, 1200), (5, 120))


def held_out_load(turn: int) -> list[Arrival]:
    return load(100 + turn, 4.0, (300, 700), (20, 60))


def load(seed: int, rate: float, prompt: tuple[int, int], answer: tuple[int, int]) -> list[Arrival]:
    chance, at_s, arrivals = random.Random(seed), 0.0, []
    while (at_s := at_s + chance.expovariate(rate)) < TURN_S:
        arrivals.append(Arrival(at_s, chance.randint(*prompt), chance.randint(*answer)))
    return arrivals


async def served(engine: RealEngine, arrivals: Sequence[Arrival], seed: int) -> list[EnginePage]:
    """Sends the load at its times; the engine's pages meanwhile."""
    chance = random.Random(f"prompts {seed}")
    loop = asyncio.get_running_loop()

    async def one(client: httpx.AsyncClient, arrival: Arrival, began: float) -> None:
        prompt = chance.choices(range(3, 2048), k=arrival.prompt_tokens)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": arrival.output_tokens, "ignore_eos": True}
        await asyncio.sleep(began + arrival.at_s - loop.time())
        (await client.post("/v1/completions", json=body)).raise_for_status()

    watching = asyncio.create_task(asyncio.to_thread(watch, engine.url, TURN_S, 0.5, engine.key))
    headers = {"Authorization": f"Bearer {engine.key}"}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=120) as client:
        began = loop.time()
        await asyncio.gather(*(one(client, arrival, began) for arrival in arrivals))
    return await watching


class Turn(NamedTuple):
    waited_s: float
    """How long the engine's threads were ready and got no processor."""
    arrivals: list[Arrival]
    pages: list[EnginePage]
    means: dict[str, float]
    """What the engine itself measured, in seconds."""


async def turn(engine: RealEngine, arrivals: list[Arrival], seed: int) -> Turn:
    before, waited_s = counted(engine), processor_wait_s(engine)
    pages = await served(engine, arrivals, seed)
    waited_s, now = processor_wait_s(engine) - waited_s, counted(engine)
    grown = {name: now[name] - before[name] for name in now}
    return Turn(
        waited_s, arrivals, pages, {name: grown[f"{of}_sum"] / grown[f"{of}_count"] for name, of in FAMILIES.items()}
    )


def counted(engine: RealEngine) -> dict[str, float]:
    return {name: engine.metric(name) for family in FAMILIES.values() for name in (f"{family}_sum", f"{family}_count")}


def processor_wait_s(engine: RealEngine) -> float:
    assert engine.process.child
    root = psutil.Process(engine.process.child.pid)
    tasks = [Path(f"/proc/{process.pid}/task") for process in (root, *root.children(recursive=True))]
    waited_ns = (int(state.read_text().split()[1]) for task in tasks for state in task.glob("*/schedstat"))
    return sum(waited_ns) / 1e9


def calmest(turns: Sequence[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: turn.waited_s)[:CALM_TURNS]


def predicted(calibration: Calibration, shape: Shape, arrivals: Sequence[Arrival]) -> dict[str, float]:
    settings = Settings(
        max_num_seqs=ARGS["max_num_seqs"],
        max_num_batched_tokens=ARGS["max_model_len"],
        block_size=BLOCK,
        kv_tokens=calibration.kv_tokens,
    )
    pool = Pool("mixed", 1, calibration.phase_model(shape))
    requests = simulate_pools([pool], arrivals, settings, "monolithic").served
    outside_s = calibration.request_s
    decodes = sum(each.output_tokens - 1 for each in requests)
    return {
        "ttft": sum(each.ttft_s for each in requests) / len(requests) + outside_s,
        "itl": sum(each.e2e_s - each.ttft_s for each in requests) / decodes,
        "e2e": sum(each.e2e_s for each in requests) / len(requests) + outside_s,
    }


async def test_constants_fitted_under_one_load_tell_another(engine: RealEngine) -> None:
    shape = read_shape(read_config(MODEL))
    await served(engine, held_out_load(99), 99)  # the first requests of an engine's life are slower
    fitted, held_out = [], []
    for number in range(TURNS):
        fitted.append(await turn(engine, fitted_load(number), number))
        held_out.append(await turn(engine, held_out_load(number), 100 + number))
    calibration = calibrate([each.pages for each in calmest(fitted)], shape, "cpu", 1)
    compared = [(each.means, predicted(calibration, shape, each.arrivals)) for each in calmest(held_out)]
    ratios = {name: [told[name] / measured[name] for measured, told in compared] for name in FAMILIES}
    assert calibration.kv_tokens and calibration.block_size == BLOCK
    for name, values in ratios.items():
        assert median(values) == pytest.approx(1.0, abs=WITHIN), (name, ratios, calibration)

"""The constants of a real engine (vLLM on a processor), fitted to its metrics under one load, tell how it serves another.

`manage.py bench calibration`: the tiny model is calibrated under 2 to 8 requests/s of 10 to 1,200 prompt and 5 to 120 answer
tokens; the forecast with these constants is compared with the engine's own means under 4 requests/s of 300 to 700 and 20 to
60 tokens (limit 25%). A shared machine may keep the engine waiting in one second and not in the next. So the two
loads take turns, the turns in which the engine's threads waited least for a processor count, and the median over them is
compared with what the engine's own metrics said in the same seconds. Needs `manage.py engine-env`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from controlplane.core import names
from controlplane.core.calibration import Calibration
from controlplane.core.forecast import Arrival, Pool, Settings, simulate_pools
from controlplane.core.modelconfig import Shape, read_shape
from controlplane.physics.calibration import calibrate
from controlplane.physics.catalog import read_config
from controlplane.physics.enginemetrics import EnginePage
from controlplane.stack.engine_env import ensure
from tests.vllm import harness
from tests.vllm.harness import ARGS, BLOCK, MODEL, RealEngine
from tests.vllm.loads import load, served

ROOT = Path(__file__).resolve().parents[1]
TURNS = 8
CALM_TURNS = 5
WITHIN = 0.25
FAMILIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}


def fitted_load(turn: int) -> list[Arrival]:
    """All lengths, at another rate each turn."""
    return load(turn, (2.0, 5.0, 8.0)[turn % 3], (10, 1200), (5, 120))


def held_out_load(turn: int) -> list[Arrival]:
    return load(100 + turn, 4.0, (300, 700), (20, 60))


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


async def compare(engine: RealEngine) -> int:
    shape = read_shape(read_config(MODEL))
    await served(engine, held_out_load(99), 99)  # the first requests of an engine's life are slower
    fitted, held_out = [], []
    for number in range(TURNS):
        fitted.append(await turn(engine, fitted_load(number), number))
        held_out.append(await turn(engine, held_out_load(number), 100 + number))
    calibration = calibrate([each.pages for each in calmest(fitted)], shape, "cpu", 1)
    compared = [(each.means, predicted(calibration, shape, each.arrivals)) for each in calmest(held_out)]
    worst = 0.0
    for name in FAMILIES:
        ratios = [told[name] / measured[name] for measured, told in compared]
        worst = max(worst, abs(median(ratios) - 1))
        turns = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name:5} forecast / measured {median(ratios):.2f}   (limit {1 - WITHIN:g} to {1 + WITHIN:g}; turns {turns})")
    print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return int(worst > WITHIN)


def main() -> int:
    os.environ[names.ENV_VLLM_PYTHON] = python = str(ensure())
    with tempfile.TemporaryDirectory(prefix="twinpool-bench-") as scratch:
        model = Path(scratch) / "tiny-llama"
        subprocess.run([python, "-m", "workers.engines.tiny_model", str(model)], cwd=ROOT, check=True, capture_output=True)
        with harness.alone(model, Path(scratch)) as engine:
            return asyncio.run(compare(engine))


if __name__ == "__main__":
    sys.exit(main())

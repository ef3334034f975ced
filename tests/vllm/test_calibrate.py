"""A real engine's own metrics are enough to calibrate it. How well the constants tell another load is a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path

import pytest

from controlplane.core.calibration import calibration_document, read_calibration
from controlplane.core.forecast import Pool, Settings, simulate_pools
from controlplane.core.modelconfig import read_shape
from controlplane.physics.calibration import calibrate
from controlplane.physics.catalog import read_config
from tests.vllm import harness
from tests.vllm.harness import BLOCK, MODEL, RealEngine
from tests.vllm.loads import load, served


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with harness.alone(tiny_model, tmp_path_factory.mktemp("alone")) as engine:
        yield engine


async def test_a_forecast_takes_the_constants_that_a_real_engine_gives(engine: RealEngine) -> None:
    shape = read_shape(read_config(MODEL))
    turns = [await served(engine, load(seed, 6.0, (10, 1200), (5, 60)), seed) for seed in range(3)]
    calibration = read_calibration(calibration_document(calibrate(turns, shape, "cpu", 1)))
    assert (calibration.block_size, calibration.gpu) == (BLOCK, "cpu")
    assert calibration.kv_tokens and calibration.kv_tokens % BLOCK == 0
    pool = Pool("mixed", 1, calibration.phase_model(shape))
    settings = Settings(max_num_seqs=16, max_num_batched_tokens=2048, block_size=BLOCK, kv_tokens=calibration.kv_tokens)
    told = simulate_pools([pool], load(9, 4.0, (300, 700), (20, 60)), settings, "monolithic").served
    assert told and all(0 < each.ttft_s <= each.e2e_s and isfinite(each.e2e_s) for each in told)

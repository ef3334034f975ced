"""The managed environment of real engines: vLLM's CPU build with NIXL, in a per-user cache folder, made from `engine.lock`.

Installed once per user and lock file, so that a second checkout finds it. Standard library only.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from controlplane.common.locks import held
from controlplane.core.names import ENV_VLLM_PYTHON
from controlplane.stack import installer
from controlplane.stack.errors import StackError
from controlplane.stack.install_errors import explain
from workers.engines.vllm.environment import LOCK, STAMP, NoEngineEnvironment, interpreter, managed_folder

NEEDED_BYTES = 4 << 30
"""2.7 GB installed, and the wheels while they are unpacked."""
PYTHONS = ((3, 11), (3, 14))


def say(text: str) -> None:
    print(f"twinpool: {text}", file=sys.stderr, flush=True)


def ensure(progress: installer.Say = say, env: Mapping[str, str] = os.environ) -> Path:
    """The interpreter that can import vllm: the one TWINPOOL_VLLM_PYTHON names, else the managed environment's, installed
    now if it is not there. Two callers at once: one works, the other waits. Raises StackError."""
    if env.get(ENV_VLLM_PYTHON):
        return _named(env)
    folder = managed_folder(env)
    if not (folder / STAMP).is_file():
        _refuse_unfit(has_gpu=Path("/proc/driver/nvidia/version").exists())
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            waits = partial(progress, "another process is installing the engine environment: waiting for it")
            with held(folder.with_name(f"{folder.name}.lock"), wait_s=math.inf, waits=waits):
                if not (folder / STAMP).is_file():
                    _install(folder, env, progress)
        except OSError as error:
            raise StackError(_explain(f"{error.strerror}: {error.filename}", folder)) from error
    return interpreter(env)


def _named(env: Mapping[str, str]) -> Path:
    try:
        python = interpreter(env)
        check = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        found = subprocess.run([str(python), "-c", check], capture_output=True, timeout=60, cwd="/", check=False)
    except NoEngineEnvironment as error:
        raise StackError(str(error)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{ENV_VLLM_PYTHON} cannot be run: {error}") from error
    if found.returncode != 0:
        raise StackError(f"{python} ({ENV_VLLM_PYTHON}) has no vllm: install it there, or unset the variable")
    return python


def _refuse_unfit(*, has_gpu: bool) -> None:
    """Raises StackError where the CPU build cannot run, or is not what its user wants."""
    if has_gpu:
        raise StackError(
            "this machine has an NVIDIA GPU, and the managed environment is vLLM's CPU build: make an environment of your "
            f"own (python3 -m venv DIR; DIR/bin/pip install vllm nixl) and set {ENV_VLLM_PYTHON}=DIR/bin/python"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        raise StackError(
            f"vLLM's CPU build needs Linux on x86-64 with glibc, this is {sys.platform} on {platform.machine()}: use such a "
            f"machine, or set {ENV_VLLM_PYTHON} to the Python of an environment that has vllm"
        )
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1] or sys.implementation.name != "cpython":
        raise StackError(
            f"vLLM's CPU build needs CPython 3.11 to 3.14, this is {platform.python_implementation()} "
            f"{platform.python_version()}: run manage.py with such a Python, or set {ENV_VLLM_PYTHON}"
        )


def _install(folder: Path, env: Mapping[str, str], progress: installer.Say) -> None:
    """Make the environment, stamp it last. An unstamped folder is what an interrupted installation left."""
    if folder.exists():
        progress("removing what an interrupted installation left")
        shutil.rmtree(folder)
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise StackError(
            f"the engine environment needs {NEEDED_BYTES / 1e9:.1f} GB, and the disk of {folder.parent} has "
            f"{free / 1e9:.1f} GB left: free some space, or name another disk with XDG_CACHE_HOME"
        )
    count = sum(line[:1].isalnum() for line in LOCK.read_text().splitlines())
    progress(f"installing the engine environment into {folder} ({count} packages, 2.7 GB, a few minutes)")

    def explained(output: str) -> str:
        return _explain(output, folder)

    installer.run([sys.executable, "-m", "venv", str(folder)], explained, env=env)
    scratch = folder / "tmp"
    scratch.mkdir()
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--require-hashes", "--retries", "2"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"]
    watch = installer.Progress(count, progress)
    installer.run([*command, "-r", str(LOCK)], explained, env={**env, "TMPDIR": str(scratch)}, watch=watch)
    shutil.rmtree(scratch)
    progress("trying it")
    trial = [str(folder / "bin" / "python"), "-P", "-c", "import torch, transformers, vllm, nixl._api"]
    installer.run(trial, explained, env=env)
    (folder / STAMP).touch()
    progress("the engine environment is ready")


def _explain(output: str, folder: Path) -> str:
    if "No matching distribution found for torch" in output:
        return (
            "pip finds no CPU build of torch 2.13.0, which PyPI does not carry: name PyTorch's index of CPU wheels "
            "(pytorch.org, 'Get started', CPU) in PIP_EXTRA_INDEX_URL and run it again"
        )
    return explain(
        output,
        str(folder.parent),
        needs=f"about {NEEDED_BYTES / 1e9:.1f} GB",
        lock="engine.lock",
        elsewhere="name another folder with XDG_CACHE_HOME",
        afresh=str(folder),
    )

"""Which Python runs vLLM on this machine: the one that is named, or the managed environment if it is complete.

Only looks; `python3 manage.py engine-env` installs. Standard library only, so that the installer can share it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from controlplane.core.names import ENV_VLLM_PYTHON

LOCK = Path(__file__).resolve().parents[3] / "engine.lock"
STAMP = "complete"
"""Written into the managed environment last: without it the folder is a torn installation."""


class NoEngineEnvironment(RuntimeError):
    """No interpreter on this machine can run vLLM; the message names the remedy."""


def cache_folder(env: Mapping[str, str]) -> Path:
    """The per-user cache (XDG base directory specification): $XDG_CACHE_HOME or ~/.cache, plus `twinpool`."""
    base = env.get("XDG_CACHE_HOME", "")
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return (Path(base) if base.startswith("/") else home / ".cache") / "twinpool"


def managed_folder(env: Mapping[str, str], lock: Path = LOCK) -> Path:
    """Where the managed environment of this lock file and this Python version lives, whether or not it exists."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    return cache_folder(env) / f"engine-{digest}-py{sys.version_info[0]}{sys.version_info[1]}"


def interpreter(env: Mapping[str, str] = os.environ) -> Path:
    """The Python to start vLLM with. Raises NoEngineEnvironment. Says nothing about whether vllm imports."""
    named = env.get(ENV_VLLM_PYTHON, "")
    if named:
        if not (os.path.isabs(named) and os.access(named, os.X_OK) and Path(named).is_file()):
            raise NoEngineEnvironment(
                f"{ENV_VLLM_PYTHON} is {named!r}, which is no absolute path of an executable: name the Python of an "
                "environment that has vllm, or unset it"
            )
        return Path(named)
    folder = managed_folder(env)
    if not (folder / STAMP).is_file():
        raise NoEngineEnvironment(
            "no environment for vLLM on this machine: run `python3 manage.py engine-env`, or set "
            f"{ENV_VLLM_PYTHON} to the Python of an environment that has vllm"
        )
    return folder / "bin" / "python"

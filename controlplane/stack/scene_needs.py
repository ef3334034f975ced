"""What a fleet needs on disk before its engines can start: the engine environment, and the tiny real model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from controlplane.core import names
from controlplane.core.scenes import Scene
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.services import ROOT


def prepare_models(scene: Scene, state: StateFolder) -> str:
    """Make what is missing. Returns the interpreter that can import vLLM, or "" if this fleet needs none (then one that the
    operator named is passed on). Raises StackError."""
    named = os.environ.get(names.ENV_VLLM_PYTHON, "")
    if not any(model.engine_kind == "vllm" for model in scene.models):
        return named
    from controlplane.stack.engine_env import ensure

    python = ensure()
    for model in scene.models:
        if model.tiny:
            _make_tiny(python, Path(model.source.format(state=state.path)))
    return str(python)


def _make_tiny(python: Path, folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    print("twinpool: making the tiny model", flush=True)
    command = [str(python), "-m", "workers.engines.tiny_model", str(folder)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if made.returncode != 0:
        reason = (made.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
        raise StackError(f"the tiny model cannot be made: {reason}; repair the engine environment (manage.py engine-env)")

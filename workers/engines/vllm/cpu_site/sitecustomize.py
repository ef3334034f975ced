"""On PYTHONPATH of vLLM engines on CPU nodes only: lets NIXL's progress thread sleep between polls.

NIXL's Python API fixes the delay at 0, so each engine spins a whole core; with 1 ms two idle engines cost 3% of one. (Off
altogether, the first transfer hangs for two minutes.) On GPU nodes the delay stays 0 for latency's sake and this folder is
not on the path. Standard library only: it is imported at every start of the engine's interpreter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PROGRESS_DELAY_US = 1000
_BINDINGS = re.compile(r"nixl_\w+\._bindings")


def _slow_down(bindings: ModuleType) -> None:
    create = bindings.nixlAgent

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = PROGRESS_DELAY_US
        return create(name, config)

    bindings.nixlAgent = agent  # type: ignore[attr-defined]


class _Loader(importlib.abc.Loader):
    """The real loader of NIXL's bindings, followed by the patch."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        _slow_down(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _BINDINGS.fullmatch(fullname):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())

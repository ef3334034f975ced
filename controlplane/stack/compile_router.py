"""manage.py compile-router: builds the router's hot modules as C extensions, which routers started afterwards use."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from functools import partial
from pathlib import Path

from controlplane.common.locks import held
from controlplane.core.names import ENV_ROUTER_BUILDS
from controlplane.router import compiled
from controlplane.stack.errors import StackError

_LEVEL = 2
"""Of the C compiler: 3 takes longer and is not faster."""
_CHECK = """
import importlib
from controlplane.router import compiled
problem = compiled.put_in_place()
assert compiled.code() == "compiled", problem
for name in compiled.MODULES:
    importlib.import_module(name)
"""


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py compile-router",
        description="Build the router's hot modules as C extensions, which routers started afterwards use.",
    )
    parser.add_argument("--level", type=int, choices=range(4), default=_LEVEL, help=f"of optimization; default {_LEVEL}")
    level = parser.parse_args(arguments).level
    build = compiled.current()
    if compiled.files(build):
        print(f"twinpool: the compiled router is up to date: {build}")
        return 0
    if (problem := missing()) is not None:
        raise StackError(f"{problem}. Routers run interpreted until then.")
    compiled.builds().mkdir(parents=True, exist_ok=True)
    waits = partial(print, "twinpool: another process is compiling it: waiting for it", flush=True)
    with held(compiled.builds() / "lock", wait_s=math.inf, waits=waits):
        if not compiled.files(build):
            print("twinpool: compiling the router (about a minute)", flush=True)
            _clear(keep=build)
            began = time.monotonic()
            _compile(compiled.builds() / "making", level, build)
            print(f"twinpool: compiled in {time.monotonic() - began:.0f} s")
        _clear(keep=build)
    print("twinpool: routers use it once they are started again")
    return 0


def _clear(keep: Path) -> None:
    """Removes older builds, and what an interrupted command has left."""
    for folder in compiled.builds().iterdir():
        if folder.is_dir() and (folder != keep or not compiled.files(keep)):
            shutil.rmtree(folder, ignore_errors=True)


def missing() -> str | None:
    """What compiling needs and this machine has not, with the remedy; None: all is there."""
    compiler = shlex.split(str(sysconfig.get_config_var("CC") or "cc"))[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}): install one (Debian: apt install gcc libc6-dev)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        return f"{header} is missing: install Python's C headers (Debian: apt install {package})"
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"this environment has no {module}: run it with python3 manage.py, which installs it"
    return None


def _compile(folder: Path, level: int, build: Path) -> None:
    """Leaves a checked build at `build`, or raises StackError."""
    source, result = folder / "source", folder / "build"
    shutil.copytree(
        compiled.ROOT / "controlplane", source / "controlplane", ignore=shutil.ignore_patterns("__pycache__", "locale")
    )
    modules = [name.replace(".", "/") + ".py" for name in compiled.MODULES]
    _child([str(compiled.SETUP), str(level), *modules], source)
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    for file in [*source.glob(f"*{suffix}"), *(source / "controlplane").rglob(f"*{suffix}")]:
        target = result / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    checked = folder / build.name
    result.rename(checked)
    _child(["-c", _CHECK], compiled.ROOT, {ENV_ROUTER_BUILDS: str(folder), "PYTHONPATH": str(compiled.ROOT)})
    checked.rename(build)


def _child(arguments: list[str], cwd: Path, more: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-W", "ignore", *arguments]
    ended = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(more or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode:
        log = compiled.builds() / "failed.log"
        log.write_text(ended.stdout)
        last = ([line for line in ended.stdout.splitlines() if line.strip()] or [f"status {ended.returncode}"])[-1]
        raise StackError(f"the router cannot be compiled here: {last:.200}; all of it is in {log}. Routers run interpreted.")

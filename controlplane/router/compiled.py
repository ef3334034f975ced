"""The router's hot modules as extension modules, which `manage.py compile-router` builds from the same source.

A build has a folder named by a hash of the interpreter and of all source that it may depend on. One of another hash is never
used: the source runs interpreted then. Standard library only, and imports nothing that may be compiled.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from controlplane.core.names import ENV_ROUTER_BUILDS

INTERPRETED = "--interpreted"
"""The router's option that leaves a build alone."""

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "controlplane" / "stack" / "router_setup.py"
"""What compiles them; run in a copy of the source."""

MODULES = (
    *(f"controlplane.core.{name}" for name in ("eras", "kvindex", "pairing", "ratelimit", "routing", "scoring")),
    *(
        f"controlplane.router.{name}"
        for name in (
            "admission", "answers", "app", "bodies", "breaker", "budget", "client", "counters", "courses", "engines",
            "errors", "exchange", "expiry", "fields", "flows", "framing", "gathering", "handoff", "heads", "identity",
            "ledger", "legs", "limits", "loads", "paths", "pool", "prefixes", "reading", "record", "relay",
            "split", "sse", "upstream", "usage", "wholly",
        )
    ),
)  # fmt: skip
_NAME_LENGTH = 24
_SEEN_BY_MODULES = ("common", "core", "router")
"""Packages whose types and constants are compiled in."""


def builds() -> Path:
    """The folder of builds: TWINPOOL_ROUTER_BUILDS, else `.compiled` in the checkout."""
    return Path(os.environ.get(ENV_ROUTER_BUILDS) or ROOT / ".compiled")


def current() -> Path:
    """The folder of a build of the source as it is now, for this interpreter. It may not exist. Raises OSError."""
    digest = hashlib.sha256("\n".join((sys.version, platform.machine(), _suffix())).encode())
    for package in _SEEN_BY_MODULES:
        for file in sorted((ROOT / "controlplane" / package).glob("*.py")):
            digest.update(f"\n{package}/{file.name}\n".encode() + file.read_bytes())
    digest.update(SETUP.read_bytes())
    return builds() / digest.hexdigest()[:_NAME_LENGTH]


def put_in_place() -> str | None:
    """From now on the modules are imported from the current build, if there is one. Otherwise returns why not, if somebody
    built one: it is out of date or cannot be read. Call it before any of the modules is imported."""
    try:
        if not builds().is_dir() or not any(is_build(each) for each in builds().iterdir()):
            return None
        found = files(current())
    except OSError as error:
        return f"the compiled router cannot be read ({error.strerror}): running interpreted"
    if not found:
        return "the compiled router is of other source or another Python: running interpreted (manage.py compile-router)"
    sys.meta_path.insert(0, _Finder(found))
    return None


def code() -> str:
    """How this process runs its hot modules: "compiled" or "interpreted"."""
    return "compiled" if any(isinstance(finder, _Finder) for finder in sys.meta_path) else "interpreted"


def is_build(folder: Path) -> bool:
    """Whether it is a build by its name, of whatever source."""
    return len(folder.name) == _NAME_LENGTH and folder.is_dir()


def files(build: Path) -> dict[str, Path]:
    """Module name -> file of a complete build; empty if it is none. Raises OSError."""
    suffix = _suffix()
    found = {name: build.joinpath(*name.split(".")).with_suffix(suffix) for name in MODULES}
    shared = {file.name.removesuffix(suffix): file for file in build.glob(f"*{suffix}")}
    return {**found, **shared} if shared and all(file.is_file() for file in found.values()) else {}


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


class _Finder:
    """Finds these modules in these files, before anybody looks for their source."""

    def __init__(self, found: dict[str, Path]) -> None:
        self._found = found

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._found.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))

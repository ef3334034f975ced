"""PostgreSQL's own programs for dumps: which of those on this machine fits a server, and how it is told where to connect."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from controlplane.core.names import ENV_POSTGRES_BIN
from controlplane.stack.binaries import postgres_bin
from controlplane.stack.errors import StackError

SYSTEM = Path("/usr/lib/postgresql")
NEEDED = ("pg_dump", "pg_restore", "psql")
TLS_MODES = ("require", "verify-ca", "verify-full")


@dataclass(frozen=True)
class Login:
    """How a program of PostgreSQL connects: the password goes by environment, never by argv."""

    url: str
    """Without a password."""
    env: Mapping[str, str] = field(repr=False)

    @property
    def tls(self) -> bool:
        """Whether it must be reached over TLS."""
        return parse_qs(urlsplit(self.url).query).get("sslmode", [self.env.get("PGSSLMODE", "")])[-1] in TLS_MODES

    @classmethod
    def of(cls, url: str) -> Login:
        parts = urlsplit(url)
        user, host = parts.netloc.rpartition("@")[0].partition(":")[0], parts.netloc.rpartition("@")[2]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TWINPOOL_")}
        if parts.password:
            env["PGPASSWORD"] = unquote(parts.password)
        return cls(urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host)), env)


@dataclass(frozen=True)
class Tools:
    folder: Path
    major: int

    def argv(self, program: str, *args: str) -> list[str]:
        return [str(self.folder / program), *args]


def tools_for(major: int, *, tls: bool = False) -> Tools:
    """The oldest programs here that can read a server or a dump of this major version, over TLS if `tls`. Raises StackError
    if none can."""
    found = [Tools(folder, version) for folder in _folders() if (version := _major(folder))]
    fitting = sorted((each for each in found if each.major >= major), key=lambda each: each.major)
    for each in fitting:
        if not tls or _speaks_tls(each.folder):
            return each
    have = ", ".join(str(each.major) + (" without TLS" if each in fitting else "") for each in found) or "none"
    what = f"PostgreSQL {major} or newer {'with TLS ' if tls else ''}"
    raise StackError(
        f"no pg_dump, pg_restore and psql of {what}are here (found: {have}): "
        f"install PostgreSQL's client programs, or set {ENV_POSTGRES_BIN} to their folder"
    )


def _folders() -> list[Path]:
    """With the setting only its folder counts."""
    setting = os.environ.get(ENV_POSTGRES_BIN)
    folders = [Path(setting)] if setting else [*_embedded(), *SYSTEM.glob("*/bin")]
    return [folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in NEEDED)]


def _embedded() -> list[Path]:
    try:
        return [postgres_bin()]
    except StackError:
        return []


@cache
def _speaks_tls(folder: Path) -> bool:
    """Programs that were built without it refuse to be asked for it."""
    command = [str(folder / "psql"), "-X", "--no-password", "postgresql://127.0.0.1:1/none?sslmode=require"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env={"LC_ALL": "C"})
    return "SSL support is not compiled in" not in asked.stderr


@cache
def _major(folder: Path) -> int:
    """0 if its programs do not run."""
    try:
        asked = subprocess.run(
            [str(folder / "pg_dump"), "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"\) (\d+)", asked.stdout)
    return int(found[1]) if found else 0

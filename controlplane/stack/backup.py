"""`manage.py backup FILE`: the database in one file, as it was at one moment, with what `restore` has to know of it."""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from controlplane.common.files import BadKey, read_key
from controlplane.core import names, signing
from controlplane.core.backups import DUMP, FORMAT, MANIFEST, Manifest
from controlplane.stack import endpoints
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, chosen
from controlplane.stack.pgtools import Login, Tools, tools_for
from controlplane.stack.services import ROOT


@dataclass(frozen=True)
class Roles:
    """The two logins of a database. `owner_url` holds a secret."""

    owner_url: str
    owner: str
    app: str


def run(arguments: Sequence[str], root: Path) -> int:
    parser = argparse.ArgumentParser(prog="manage.py backup", description="Write the database to FILE (0600).")
    parser.add_argument("file", type=Path, metavar="FILE", help="must not be there yet")
    parser.add_argument("--without-telemetry", action="store_true", help="leave out what happened; keep what is desired")
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    endpoints.adopt(state)
    manifest = make(read.file.absolute(), state, telemetry=not read.without_telemetry)
    print(f"twinpool: {read.file}: {manifest.bytes:,} bytes, routing table {manifest.epoch}:{manifest.generation}")
    print(f"twinpool: the keys in {state.secrets} are not in it: keep a copy of them apart, in a safe place")
    return 0


def make(file: Path, state: StateFolder, *, telemetry: bool = True) -> Manifest:
    """Write a backup to `file`, which appears only when it is complete. Raises StackError; then there is none."""
    if file.exists():
        raise StackError(f"{file} is there already: name another file")
    roles = login_roles()
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as folder:
            dump = Path(folder) / DUMP
            manifest = _dump(dump, roles, fingerprint(state), telemetry=telemetry)
            _pack(Path(folder) / "whole", manifest, dump)
            os.link(Path(folder) / "whole", file)  # refuses a file that has come meanwhile
    except OSError as error:
        raise StackError(f"cannot write {file}: {error.strerror}; free space, or name a file elsewhere") from error
    except psycopg.Error as error:
        raise StackError(f"the database cannot be read: {first_line(error)}; start it, or correct its URL") from error
    return manifest


def login_roles() -> Roles:
    """Of the database in the environment. Raises StackError if there is none."""
    app = os.environ.get(names.ENV_DATABASE_URL, endpoints.NO_DATABASE)
    if app == endpoints.NO_DATABASE:
        raise StackError("no database is known here: start the stack once, or name its folder with --state")
    owner = os.environ.get(names.ENV_DATABASE_OWNER_URL) or app
    return Roles(owner, unquote(urlsplit(owner).username or ""), unquote(urlsplit(app).username or ""))


def fingerprint(state: StateFolder) -> str:
    """Tells fleet secrets apart and gives none away; empty where there is none to read."""
    named = os.environ.get(names.ENV_FLEET_SECRET_FILE)
    try:
        secret = read_key(Path(named) if named else state.fleet_key, "the fleet secret")
    except BadKey:
        return ""
    return hashlib.sha256(signing.table_key(secret)).hexdigest()[:16]


def server_major(connection: psycopg.Connection[Any]) -> int:
    return connection.info.server_version // 10_000


def first_line(error: BaseException) -> str:
    """Of an error, for a message; what PostgreSQL says holds no password. Of several addresses that were tried, the last."""
    lines = [line for line in str(error).strip().splitlines() if not line.strip().startswith("Is the server running")]
    return (lines or [type(error).__name__])[-1].split("FATAL: ")[-1].split(" failed: ")[-1].strip()


def _dump(dump: Path, roles: Roles, fleet: str, *, telemetry: bool) -> Manifest:
    """The dump and what the manifest says are of the same moment: one exported snapshot."""
    with psycopg.connect(roles.owner_url, connect_timeout=5) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        migrations = _migrations(connection)
        epoch, generation = _stamp(connection)
        login = Login.of(roles.owner_url)
        tools = tools_for(server_major(connection), tls=login.tls)
        made_at = time.time()
        _run_dump(tools, login, _snapshot(connection), dump, telemetry=telemetry)
        return Manifest(
            format=FORMAT,
            made_at=made_at,
            twinpool=version(),
            server=server_major(connection),
            tool=tools.major,
            owner=roles.owner,
            app=roles.app,
            migrations=migrations,
            epoch=epoch,
            generation=generation,
            telemetry=telemetry,
            sha256=digest(dump),
            bytes=dump.stat().st_size,
            fleet=fleet,
        )


def _migrations(connection: psycopg.Connection[Any]) -> tuple[str, ...]:
    if connection.execute("SELECT to_regclass('public.django_migrations')").fetchone() == (None,):
        raise StackError("the database is empty: there is nothing to keep; start the stack once")
    rows = connection.execute("SELECT app, name FROM public.django_migrations ORDER BY app, name").fetchall()
    return tuple(f"{app}.{name}" for app, name in rows)


def _stamp(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    row = connection.execute("SELECT epoch, generation FROM public.fleet_tablestate WHERE id = 1").fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _snapshot(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def _run_dump(tools: Tools, login: Login, snapshot: str, dump: Path, *, telemetry: bool) -> None:
    left_out = [] if telemetry else ["--exclude-table-data=public.telemetry_*"]
    options = ["--format=custom", f"--snapshot={snapshot}", "--no-password", *left_out]
    command = tools.argv("pg_dump", *options, f"--file={dump}", f"--dbname={login.url}")
    made = subprocess.run(command, env=dict(login.env), capture_output=True, text=True, check=False, umask=0o077)
    if made.returncode != 0:
        remedy = "; free space, or name a file elsewhere" if os.strerror(errno.ENOSPC) in made.stderr else ""
        raise StackError(f"pg_dump failed: {reason(made.stderr)}{remedy}")


def _pack(whole: Path, manifest: Manifest, dump: Path) -> None:
    text = json.dumps(asdict(manifest), indent=1).encode()
    head = tarfile.TarInfo(MANIFEST)
    head.size, head.mode, head.mtime = len(text), 0o600, int(manifest.made_at)
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.addfile(head, io.BytesIO(text))
            tar.add(dump, DUMP)
        file.flush()
        os.fsync(file.fileno())


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def reason(stderr: str) -> str:
    """The first complaint of a program of PostgreSQL."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line.lower() or "fatal:" in line.lower()]
    return (errors or lines or ["no reason given"])[0]

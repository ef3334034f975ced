"""An embedded PostgreSQL: made once, then started as a plain process of ours on a loopback port with passwords.

Three roles: the superuser (`twinpool_admin`) only makes the others; `owner` owns the database and its schema; `app` is what
the control plane's processes use. Grants on tables belong to the migrations.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from controlplane.common.files import write_private
from controlplane.core.names import ENV_POSTGRES_BIN
from controlplane.stack.binaries import postgres_bin
from controlplane.stack.errors import StackError
from controlplane.stack.privilege import Identity, identity_for

DATABASE = "twinpool"
ADMIN, OWNER, APP = "twinpool_admin", "owner", "app"

# For a machine with little memory. Durability stays at PostgreSQL's defaults (fsync, synchronous commit).
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "80",
    "shared_buffers": "64MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "effective_cache_size": "512MB",
    "min_wal_size": "80MB",
    "max_wal_size": "512MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "max_worker_processes": "4",
    "max_parallel_workers": "2",
    "max_parallel_workers_per_gather": "0",
    "autovacuum_max_workers": "2",
    "jit": "off",
    "huge_pages": "off",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u ",
    "client_connection_check_interval": "5s",
    "idle_in_transaction_session_timeout": "60s",
}
_SETTINGS_FROM_18 = {"io_method": "sync"}  # no worker processes for I/O


@dataclass(frozen=True)
class PostgresPasswords:
    admin: str = field(repr=False)
    owner: str = field(repr=False)
    app: str = field(repr=False)


@dataclass(frozen=True)
class PostgresUrls:
    """postgresql:// URLs with passwords: never log them."""

    admin: str = field(repr=False)
    owner: str = field(repr=False)
    app: str = field(repr=False)


class EmbeddedPostgres:
    """One cluster in `folder` (its parent must exist): `prepare` it, run its `command`, and `provision` it once it
    `is_ready`."""

    def __init__(self, folder: Path, port: int, passwords: PostgresPasswords) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.port = port
        self.urls = PostgresUrls(
            *(f"postgresql://{user}:{password}@127.0.0.1:{port}/{DATABASE}" for user, password in _logins(passwords))
        )
        self._passwords = passwords
        self._identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            self._identity = identity_for(postgres_bin(), self.folder)
        return self._identity

    def prepare(self) -> None:
        """Make the cluster unless it is there; an interrupted making is made again. Raises StackError."""
        self.folder.mkdir(mode=0o711, exist_ok=True)
        if not (self.data / "PG_VERSION").is_file():
            self._initialise()
        self.identity.give_tree(self.data)
        self._check_version()

    def command(self) -> list[str]:
        settings = {**_SETTINGS, "port": str(self.port)}
        if self._major() >= 18:
            settings |= _SETTINGS_FROM_18
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self.identity.argv("postgres", "-D", str(self.data), *options)

    @property
    def spawn_options(self) -> Mapping[str, Any]:
        """What subprocess.Popen needs besides the command."""
        return {"cwd": "/", **self.identity.spawn}

    def is_ready(self) -> bool:
        """Whether it answers a query now."""
        try:
            with self._connect() as connection:
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def provision(self) -> None:
        """Roles, passwords and the database, as they should be. Safe to repeat. Raises psycopg.Error."""
        with self._connect() as connection:
            for role, password in ((OWNER, self._passwords.owner), (APP, self._passwords.app)):
                self._role(connection, role, password)
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(_id(DATABASE), _id(OWNER)))
            connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(_id(DATABASE)))
            grant = sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(_id(DATABASE), _id(APP))
            connection.execute(grant)

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=ADMIN,
            password=self._passwords.admin,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def _role(self, connection: psycopg.Connection[Any], role: str, password: str) -> None:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(_id(role)))
        # The verifier, not the password, so that no server log can ever show it.
        verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(_id(role), sql.Literal(verifier)))

    def _initialise(self) -> None:
        """initdb into a folder that gets its name only when complete."""
        making, password_file = self.folder / "data.making", self.folder / "password"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        self.identity.give(making)
        write_private(password_file, self._passwords.admin.encode())
        self.identity.give(password_file)
        command = self.identity.argv(
            "initdb",
            *("-D", str(making), "-U", ADMIN, f"--pwfile={password_file}", "--auth=scram-sha-256", "-E", "UTF8"),
            *("--locale=C", "--data-checksums", "--no-instructions"),
            *(("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if self._program_major() >= 17 else ()),
        )
        try:
            made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **self.identity.spawn)
        finally:
            password_file.unlink()
        if made.returncode != 0:
            raise StackError(f"initdb failed: {_reason(made.stderr)}")
        making.rename(self.data)

    def _major(self) -> int:
        return int((self.data / "PG_VERSION").read_text().split(".")[0])

    def _program_major(self) -> int:
        command = self.identity.argv("postgres", "--version")
        shown = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True, **self.identity.spawn).stdout
        return int(shown.split(")")[-1].split()[0].split(".")[0])

    def _check_version(self) -> None:
        data, program = self._major(), self._program_major()
        if data != program:
            raise StackError(
                f"{self.data} was made by PostgreSQL {data} but the programs are {program}: set {ENV_POSTGRES_BIN} to "
                f"those of {data}, or choose another --state"
            )


def _logins(passwords: PostgresPasswords) -> tuple[tuple[str, str], ...]:
    return ((ADMIN, passwords.admin), (OWNER, passwords.owner), (APP, passwords.app))


def _id(name: str) -> sql.Identifier:
    return sql.Identifier(name)


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return "no space left on the disk: free some, or choose another --state"
    errors = [line for line in lines if "error:" in line.lower() or "fatal:" in line.lower()]
    return (errors or lines or ["no reason given"])[0]

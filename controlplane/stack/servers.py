"""PostgreSQL and Valkey of a stack: embedded ones become supervised services, external ones are only asked."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import psycopg

from controlplane.common.valkey import UNREACHABLE, connect_sync
from controlplane.core import names
from controlplane.stack import health
from controlplane.stack.endpoints import Endpoints, External
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres, PostgresPasswords
from controlplane.stack.services import SERVERS, Service
from controlplane.stack.valkey import EmbeddedValkey


@dataclass(frozen=True)
class Servers:
    """What a stack stores things in. None: external."""

    endpoints: Endpoints
    postgres: EmbeddedPostgres | None
    valkey: EmbeddedValkey | None

    def services(self, base: Mapping[str, str]) -> list[Service]:
        found = []
        if self.postgres:
            found.append(_postgres_service(self.postgres, base))
        if self.valkey:
            found.append(_valkey_service(self.valkey, base))
        return found


def resolve(state: StateFolder, stored: Endpoints, given: External, join_address: str) -> Servers:
    """The servers to use, with ports that are free now (the last ones if they still are). Starts nothing."""
    ends, postgres, valkey = stored, None, None
    if given.database_url:
        ends = replace(ends, database_url=given.database_url, owner_url=given.owner_url)
    else:
        ends = replace(ends, postgres_port=free_port(ends.postgres_port))
        passwords = PostgresPasswords(ends.admin_password, ends.owner_password, ends.app_password)
        postgres = EmbeddedPostgres(state.postgres, ends.postgres_port, passwords)
        ends = replace(ends, database_url=postgres.urls.app, owner_url=postgres.urls.owner)
    if given.valkey_url:
        ends = replace(ends, valkey_url=given.valkey_url)
    else:
        ends = replace(ends, valkey_port=free_port(ends.valkey_port, join_address or "127.0.0.1"))
        valkey = EmbeddedValkey(state.valkey, ends.valkey_port, ends.valkey_password, join_address)
        ends = replace(ends, valkey_url=valkey.url)
    ends = replace(ends, indexer_port=free_port(ends.indexer_port, join_address or "127.0.0.1"))
    return Servers(replace(ends, telemetry_url=given.telemetry_url, join_address=join_address), postgres, valkey)


def check_external(given: External) -> None:
    """Raises StackError if an external server does not answer."""
    for url, name in ((given.database_url, names.ENV_DATABASE_URL), (given.owner_url, names.ENV_DATABASE_OWNER_URL)):
        if url and (problem := database_problem(url)):
            raise StackError(
                f"the PostgreSQL of {name} ({where(url)}) does not answer: {problem}; start it or correct the URL"
            )
    for url, name in ((given.valkey_url, names.ENV_VALKEY_URL), (given.telemetry_url, names.ENV_TELEMETRY_URL)):
        if url and (problem := broker_problem(url)):
            raise StackError(f"the Valkey of {name} ({where(url)}) does not answer: {problem}; start it or correct the URL")


def database_problem(url: str) -> str:
    """Why a database cannot be used; empty if it can."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[-1].split("FATAL: ")[-1].strip()
    return ""


def broker_problem(url: str) -> str:
    """Why a broker cannot be used; empty if it can."""
    try:
        with connect_sync(url, 5.0) as client:
            client.ping()
    except UNREACHABLE as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def where(url: str) -> str:
    """Host and port of a URL, for a message."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def is_own_address(address: str) -> bool:
    """Whether a server of this machine could listen on `address`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _postgres_service(postgres: EmbeddedPostgres, base: Mapping[str, str]) -> Service:
    return Service(
        name="postgres",
        argv=tuple(postgres.command()),
        env=base,
        check=_question(postgres.is_ready),
        stage=SERVERS,
        port=postgres.port,
        stop_signal=2,
        spawn=postgres.spawn_options,
        essential=True,
    )


def _valkey_service(valkey: EmbeddedValkey, base: Mapping[str, str]) -> Service:
    return Service(
        name="valkey",
        argv=tuple(valkey.command()),
        env=base,
        check=_question(valkey.is_ready),
        stage=SERVERS,
        port=valkey.port,
        essential=True,
    )


def _question(ask: Callable[[], bool]) -> health.Check:
    return health.in_thread(ask)

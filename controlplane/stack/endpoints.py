"""Where PostgreSQL and Valkey are, embedded or external, and the secrets to reach them: kept in `secrets/endpoints.json`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from controlplane.common import databaseurl, valkey
from controlplane.common.files import write_private
from controlplane.core import names
from controlplane.core.codec import WrongShape, decode
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, read_json


@dataclass(frozen=True)
class Endpoints:
    """Passwords and ports of the embedded servers (made once, ports moved when taken), and the URLs in use now."""

    admin_password: str = field(default="", repr=False)
    owner_password: str = field(default="", repr=False)
    app_password: str = field(default="", repr=False)
    valkey_password: str = field(default="", repr=False)
    postgres_port: int = 0
    valkey_port: int = 0
    console_port: int = 0
    router_port: int = 0
    indexer_port: int = 0
    metrics_ports: Mapping[str, int] = field(default_factory=dict)
    """Of processes that serve /metrics and nothing else over HTTP, by their names."""
    database_url: str = field(default="", repr=False)
    owner_url: str = field(default="", repr=False)
    valkey_url: str = field(default="", repr=False)
    telemetry_url: str = field(default="", repr=False)
    join_address: str = ""

    def environment(self) -> dict[str, str]:
        """The URLs for a management command. Holds secrets: for a process's environment only."""
        urls = {
            names.ENV_DATABASE_URL: self.database_url,
            names.ENV_DATABASE_OWNER_URL: self.owner_url,
            names.ENV_VALKEY_URL: self.valkey_url,
            names.ENV_TELEMETRY_URL: self.telemetry_url,
        }
        return {name: url for name, url in urls.items() if url}


@dataclass(frozen=True)
class External:
    """Servers that the operator runs; empty where the embedded one is wanted."""

    database_url: str = field(default="", repr=False)
    owner_url: str = field(default="", repr=False)
    valkey_url: str = field(default="", repr=False)
    telemetry_url: str = field(default="", repr=False)


def external(environ: Mapping[str, str] = os.environ) -> External:
    """The external servers named in the environment. Raises StackError for a URL that cannot be one."""
    database = environ.get(names.ENV_DATABASE_URL, "")
    found = External(
        database_url=database,
        owner_url=environ.get(names.ENV_DATABASE_OWNER_URL, "") or database,
        valkey_url=environ.get(names.ENV_VALKEY_URL, ""),
        telemetry_url=environ.get(names.ENV_TELEMETRY_URL, ""),
    )
    if found.owner_url and not database:
        raise StackError(f"{names.ENV_DATABASE_OWNER_URL} is set without {names.ENV_DATABASE_URL}: set both or neither")
    for name, url in ((names.ENV_DATABASE_URL, database), (names.ENV_DATABASE_OWNER_URL, found.owner_url)):
        _check_database_url(name, url)
    for name, url in ((names.ENV_VALKEY_URL, found.valkey_url), (names.ENV_TELEMETRY_URL, found.telemetry_url)):
        check_broker_url(name, url)
    return found


def forget_libpq_settings(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take the variables out of `environ` that would change how every PostgreSQL client here connects (PGSSLMODE, PGSERVICE,
    ...): a shell's are about other servers. With an external server they stay, as they may be how it is reached."""
    if not environ.get(names.ENV_DATABASE_URL):
        for name in [name for name in environ if name.startswith("PG")]:
            del environ[name]


def check_broker_url(name: str, url: str) -> None:
    """Raises StackError, naming `name`, for a URL that no Valkey can have."""
    if url and not valkey.usable(url):
        raise StackError(f"{name} is no usable URL: {valkey.HOW}")


def load(state: StateFolder) -> Endpoints:
    """What is stored; passwords that are missing are made. Nothing is written."""
    try:
        stored = decode(Endpoints, read_json(_file(state)))
    except WrongShape as error:
        raise StackError(f"{_file(state)} is damaged ({error}): repair it, or choose another --state") from error
    return replace(
        stored,
        admin_password=stored.admin_password or _password(),
        owner_password=stored.owner_password or _password(),
        app_password=stored.app_password or _password(),
        valkey_password=stored.valkey_password or _password(),
    )


def store(state: StateFolder, endpoints: Endpoints) -> None:
    write_private(_file(state), json.dumps(asdict(endpoints), indent=1).encode())


def stored_environment(state: StateFolder) -> dict[str, str]:
    """The environment in which a management command works on the stack of `state`; empty if there never was one."""
    if not _file(state).is_file():
        return {}
    return state.environment() | load(state).environment()


def adopt(state: StateFolder, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make `environ` that of the stack of `state`, for what this process does from now on. What the caller set is kept, and
    without a stack no server that happens to listen on PostgreSQL's usual port is taken for its database."""
    for name, value in stored_environment(state).items():
        environ.setdefault(name, value)
    environ.setdefault(names.ENV_DATABASE_URL, NO_DATABASE)
    environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")


NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"


def _password() -> str:
    return secrets.token_urlsafe(24)


def _file(state: StateFolder) -> Path:
    return state.secrets / "endpoints.json"


def _check_database_url(name: str, url: str) -> None:
    if url and not databaseurl.usable(url):
        raise StackError(f"{name} is no usable URL: {databaseurl.HOW}")

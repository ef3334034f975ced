"""What `doctor` asks of Valkey and PostgreSQL: whether they answer, are new enough, ask for a password and give no more
rights than needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis

from controlplane.common.valkey import HOW, UNREACHABLE, connect_sync, describe, usable
from controlplane.core import checkup, names
from controlplane.core.checkup import Finding
from controlplane.stack import health
from controlplane.stack.backup import first_line
from controlplane.stack.endpoints import NO_DATABASE
from controlplane.stack.servers import where


@dataclass(frozen=True)
class Rows:
    """What of the database the other checks need."""

    nodes: tuple[str, ...] = ()
    connectors: tuple[str, ...] = ()
    gbps: dict[str, float] | None = None
    stamp: tuple[int, int] = (0, 0)
    read: bool = True
    """False: the database cannot be read, and nothing is known of the rows."""


def broker(name: str, url: str) -> Iterator[Finding]:
    if not usable(url):
        yield Finding("broker", name, "fail", "has no usable URL", HOW)
        return
    subject = f"{name} {where(url)}"
    try:
        with connect_sync(url, 5.0) as client:
            info = client.info()
            policy, most = _settings(client)
    except UNREACHABLE as error:
        remedy = "start it, or correct its URL and password"
        yield Finding("broker", subject, "fail", f"does not answer ({describe(error)})", remedy)
        return
    yield checkup.valkey_version(str(info.get("valkey_version") or info.get("redis_version", "")))
    local = health.is_loopback(urlsplit(url).hostname or "")
    yield checkup.broker_password(subject, asks=_asks(url), local=local)
    yield from checkup.broker_memory(subject, policy, int(info.get("used_memory", 0)), most)


def owner(url: str) -> Finding:
    """The role that migrates and backs up."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SELECT has_schema_privilege('public', 'CREATE')").fetchone()
    except psycopg.Error as error:
        remedy = "start it, or correct TWINPOOL_DATABASE_OWNER_URL: without it nothing can be migrated"
        return Finding("roles", "owner", "fail", f"cannot connect ({first_line(error)})", remedy)
    if row != (True,):
        said, remedy = "may make no tables", "make it the owner of the database: ALTER DATABASE … OWNER TO …"
        return Finding("roles", "owner", "fail", said, remedy)
    return Finding("roles", "owner", "ok", "may change the schema")


def database(url: str, known: Collection[str]) -> tuple[list[Finding], Rows]:
    """`known`: this program's migrations."""
    subject = f"postgresql {where(url)}"
    unread = Rows(read=False)
    if url == NO_DATABASE:
        remedy = f"start the stack, name its folder with --state, or set {names.ENV_DATABASE_URL}"
        return [Finding("database", "postgresql", "fail", "none is known here", remedy)], unread
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            found = [
                Finding("database", subject, "ok", "answers"),
                checkup.postgres_version(connection.info.server_version),
            ]
            applied = _applied(connection)
            found.append(checkup.migrations(set(known) - applied, applied - set(known)))
            if found[-1].level != "ok":
                return found, unread
            found.append(_rights(connection))
            return found, _rows(connection)
    except psycopg.Error as error:
        remedy = f"start it, or correct {names.ENV_DATABASE_URL} and the password in it"
        return [Finding("database", subject, "fail", f"does not answer ({first_line(error)})", remedy)], unread


def _settings(client: redis.Redis) -> tuple[str, int]:
    """Eviction policy and limit of memory; ("", 0) from a server that does not tell."""
    try:
        told = client.config_get("maxmemory*")
    except redis.ResponseError:
        return "", 0
    return str(told.get("maxmemory-policy", "")), int(told.get("maxmemory") or 0)


def _asks(url: str) -> bool:
    """Whether it refuses whoever has no password."""
    parts = urlsplit(url)
    try:
        with connect_sync(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), 5.0) as stranger:
            stranger.ping()
    except UNREACHABLE:
        return True
    return False


def _applied(connection: psycopg.Connection[tuple[object, ...]]) -> set[str]:
    if connection.execute("SELECT to_regclass('public.django_migrations')").fetchone() == (None,):
        return set()
    return {f"{app}.{name}" for app, name in connection.execute("SELECT app, name FROM public.django_migrations").fetchall()}


def _rights(connection: psycopg.Connection[tuple[object, ...]]) -> Finding:
    row = connection.execute(
        "SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), "
        "(SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tableowner = current_user), "
        "has_table_privilege('fleet_auditentry', 'UPDATE') OR has_table_privilege('fleet_auditentry', 'DELETE')"
    ).fetchone()
    assert row is not None
    return checkup.app_role(superuser=bool(row[0]), owns=int(str(row[1])), changes_audit=bool(row[2]))


def _rows(connection: psycopg.Connection[tuple[object, ...]]) -> Rows:
    nodes = connection.execute("SELECT name, network_gbps FROM fleet_node ORDER BY name").fetchall()
    connectors = connection.execute("SELECT DISTINCT connector FROM fleet_model ORDER BY 1").fetchall()
    stamp = connection.execute("SELECT epoch, generation FROM fleet_tablestate WHERE id = 1").fetchone()
    return Rows(
        tuple(str(name) for name, _ in nodes),
        tuple(str(name) for (name,) in connectors),
        {str(name): float(str(gbps)) for name, gbps in nodes},
        (int(str(stamp[0])), int(str(stamp[1]))) if stamp else (0, 0),
    )

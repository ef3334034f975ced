"""Fixtures on real servers; see controlplane/stack/testing.py for how they start and end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from hypothesis import HealthCheck, settings
from psycopg import sql

from controlplane.stack.folder import StateFolder
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.testing import SERVERS

# How fast examples come says how busy the machine is, not whether the code is right.
settings.register_profile("twinpool", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("twinpool")


@pytest.fixture(scope="session")
def postgres() -> EmbeddedPostgres:
    """A running server with roles and the database `twinpool`, not migrated. `urls.app`, `urls.owner`, `urls.admin`."""
    return SERVERS.started_postgres()


@pytest.fixture(scope="session")
def valkey_url() -> str:
    return SERVERS.started_valkey().url


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[redis.Redis]:
    """A client of an empty Valkey."""
    client = redis.Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state folder of its own, with the secrets of this test run (the ones in-process code sees too)."""
    path = Path(tempfile.mkdtemp(prefix="twinpool-state-"))
    folder = StateFolder(path)
    folder.secrets.mkdir(mode=0o700)
    for key in (SERVERS.state.fleet_key, SERVERS.state.django_key):
        shutil.copy(key, folder.secrets)
    yield folder.create().path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def django_db_setup(postgres: EmbeddedPostgres, django_test_environment: None, django_db_blocker: Any) -> Iterator[None]:
    """The server is this run's own, so its database is used as it is: migrated by `owner`, tested as `app`."""
    from django.core.management import call_command
    from django.db import connections

    with django_db_blocker.unblock():
        call_command("migrate", database="owner", verbosity=0)
        # `app` may not TRUNCATE everything (audit, history), and Django knows nothing of unmanaged or partitioned tables.
        connections["default"].ops.execute_sql_flush = lambda _statements: _empty_all_tables(postgres.urls.admin)
    yield
    with django_db_blocker.unblock():
        connections.close_all()


def _empty_all_tables(admin_url: str) -> None:
    """Empty every table but the list of migrations, past triggers that protect history."""
    tables = """
        SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = 'public' AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'django_migrations'
    """
    with psycopg.connect(admin_url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET lock_timeout = '20s'")
        found = [sql.Identifier(name) for (name,) in connection.execute(tables).fetchall()]
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(found)))

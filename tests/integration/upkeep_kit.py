"""A database of its own for a command that works on the whole of one, and that command as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from controlplane.core import names
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT
from controlplane.stack.testing import SERVERS


@contextmanager
def database(postgres: EmbeddedPostgres, name: str) -> Iterator[dict[str, str]]:
    """An empty database of its own, as the environment of a command."""
    with psycopg.connect(postgres.urls.admin, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER owner").format(sql.Identifier(name)))
        urls = {
            names.ENV_DATABASE_URL: postgres.urls.app.rpartition("/")[0] + f"/{name}",
            names.ENV_DATABASE_OWNER_URL: postgres.urls.owner.rpartition("/")[0] + f"/{name}",
        }
        try:
            yield {**os.environ, **urls, names.ENV_FLEET_SECRET_FILE: str(SERVERS.state.fleet_key)}
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def manage(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "manage.py", *words], cwd=ROOT, env=env, capture_output=True, text=True)


def owner(env: dict[str, str], query: str) -> list[Any]:
    with psycopg.connect(env[names.ENV_DATABASE_OWNER_URL]) as connection:
        cursor = connection.execute(query)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

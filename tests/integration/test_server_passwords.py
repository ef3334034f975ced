"""How passwords of the servers are changed without an end of what runs (docs/deploy.md): what the servers make of it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import psycopg
import pytest
import redis

from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.testing import StartedValkey
from tests.integration.control_kit import until


def pings(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:  # a wrong password, too
            return False


def test_valkey_takes_the_old_and_the_new_password_until_the_old_one_ends(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = StartedValkey(tmp_path / "valkey", port, "old")
    server.prepare()
    old, new = (f"redis://:{word}@127.0.0.1:{port}/0" for word in ("old", "new"))
    server._run(server.command(), lambda: pings(old), None)
    try:
        until("there", lambda: pings(old))
        with redis.Redis.from_url(old) as running:
            running.ping()
            running.execute_command("ACL", "SETUSER", "default", ">new")
            assert pings(old) and pings(new)
            running.execute_command("ACL", "SETUSER", "default", "<old")
            assert running.ping(), "who is connected stays"
            with pytest.raises(redis.AuthenticationError):
                redis.Redis.from_url(old).ping()
        assert pings(new)
    finally:
        server.stop()
        shutil.rmtree(tmp_path / "valkey")


def test_postgresql_asks_only_new_connections_for_a_new_password(postgres: EmbeddedPostgres) -> None:
    where = postgres.urls.admin.rpartition("@")[2]
    old, new = (f"postgresql://web2:{word}@{where}" for word in ("old", "new"))
    with psycopg.connect(postgres.urls.admin, autocommit=True) as admin:
        admin.execute("CREATE ROLE web2 LOGIN PASSWORD 'old' IN ROLE app")
        try:
            with psycopg.connect(old) as running:
                admin.execute("ALTER ROLE web2 PASSWORD 'new'")
                assert running.execute("SELECT 1").fetchone() == (1,), "who is connected stays"
                with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                    psycopg.connect(old)
                psycopg.connect(new).close()
        finally:
            admin.execute("DROP ROLE web2")

"""The servers that all other tests stand on."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
import redis
from django.contrib.auth import get_user_model
from django.db import connection

from controlplane.config import config
from controlplane.stack import testing
from controlplane.stack.postgres import EmbeddedPostgres


def test_the_application_role_cannot_make_tables(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.urls.app) as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("CREATE TABLE sneaky (id int)")


def test_the_owner_can_make_tables_but_is_no_superuser(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.urls.owner) as owner:
        owner.execute("CREATE TABLE mine (id int)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("COPY mine FROM PROGRAM 'true'")


def test_a_wrong_password_is_refused(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.urls.app.replace("app:", "app:x"))


def test_pages_carry_checksums_and_text_is_utf8(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.urls.admin) as admin:
        shown = [admin.execute(f"SHOW {name}").fetchone() for name in ("data_checksums", "server_encoding", "fsync")]
    assert shown == [("on",), ("UTF8",), ("on",)]


def test_valkey_wants_its_password(valkey_url: str) -> None:
    host, port = valkey_url.rsplit("@", 1)[1].split("/")[0].split(":")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(host, int(port)).ping()


def test_valkey_keeps_and_never_evicts(valkey: redis.Redis) -> None:
    kept = valkey.config_get("append*") | valkey.config_get("maxmemory-policy")
    assert (kept["appendonly"], kept["appendfsync"], kept["maxmemory-policy"]) == ("yes", "everysec", "noeviction")


def test_a_state_folder_has_the_secrets_that_code_in_this_process_sees(state_dir: Path) -> None:
    assert (state_dir / "secrets" / "fleet.key").read_bytes() == config().fleet_secret()
    assert (state_dir / "secrets").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.django_db(transaction=True)
def test_a_transactional_test_starts_with_empty_tables(turn: int) -> None:
    assert not get_user_model().objects.exists()
    get_user_model().objects.create_user(f"user{turn}")


@pytest.mark.django_db
def test_tests_connect_as_the_application_role() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == ("app",)


def test_what_tests_are_told_by_the_environment_reaches_them() -> None:
    """The rest of TWINPOOL_* is taken away from them: it is a developer's stack."""
    read = {
        name
        for path in Path(__file__).parents[1].rglob("*.py")
        for name in re.findall(r'os\.environ\.get\("(TWINPOOL_[A-Z_]+)"', path.read_text())
    }
    assert read and read <= testing._KEPT

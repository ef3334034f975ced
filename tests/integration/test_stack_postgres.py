"""PostgreSQL refuses root; the stack finds a way that touches nothing outside its own folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.core.names import ENV_POSTGRES_BIN
from controlplane.stack import privilege
from controlplane.stack.binaries import postgres_bin
from controlplane.stack.errors import StackError
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import PostgresPasswords
from controlplane.stack.privilege import identity_for
from controlplane.stack.testing import StartedPostgres

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="asks how root is handled")
PASSWORDS = PostgresPasswords(*(secrets.token_urlsafe(12) for _ in range(3)))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="twinpool-pg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def _works(postgres: StartedPostgres) -> tuple[str, int]:
    """Start it, write, kill it, start it again, read. Returns what was read and the uid it ran under."""
    try:
        urls = postgres.start()
        with psycopg.connect(urls.owner) as owner:
            owner.execute("CREATE TABLE t AS SELECT 'kept' AS word")
            owner.execute("GRANT SELECT ON t TO app")
        os.kill(postgres.pid, signal.SIGKILL)
        postgres.stop()
        postgres.start()
        with psycopg.connect(urls.app) as app:
            row = app.execute("SELECT word FROM t").fetchone()
        assert row is not None
        return row[0], os.stat(f"/proc/{postgres.pid}").st_uid
    finally:
        postgres.stop()


def test_what_was_committed_survives_a_kill(open_folder: Path) -> None:
    word, uid = _works(StartedPostgres(open_folder / "postgres", free_port(), PASSWORDS))
    assert word == "kept"
    assert uid != 0


@only_root
def test_root_below_a_private_folder_uses_a_namespace(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    postgres = StartedPostgres(tmp_path / "postgres", free_port(), PASSWORDS)
    assert _works(postgres)[0] == "kept"
    assert postgres.identity.prefix[0] == "unshare"
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@only_root
def test_programs_out_of_reach_are_copied_with_their_libraries(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = postgres_bin().parent.parent
    hidden = open_folder / "private"
    hidden.mkdir(mode=0o700)
    for folder in (package, package.with_name(package.name + ".libs")):
        shutil.copytree(folder, hidden / folder.name, symlinks=True, ignore=shutil.ignore_patterns("*.a", "locale", "doc"))
    monkeypatch.setenv(ENV_POSTGRES_BIN, str(hidden / package.name / "pginstall" / "bin"))
    postgres = StartedPostgres(open_folder / "postgres", free_port(), PASSWORDS)
    assert _works(postgres)[0] == "kept"
    assert postgres.identity.bin.is_relative_to(open_folder / "postgres" / "programs")


@only_root
def test_without_any_way_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privilege.shutil, "which", lambda name: None)
    tmp_path.chmod(0o700)
    with pytest.raises(StackError, match=r"--state /var/lib/twinpool"):
        identity_for(postgres_bin(), tmp_path)


def test_an_interrupted_making_is_made_again(open_folder: Path) -> None:
    torn = open_folder / "postgres" / "data.making"
    torn.mkdir(parents=True)
    (torn / "PG_VERSION").write_text("18\n")
    postgres = StartedPostgres(open_folder / "postgres", free_port(), PASSWORDS)
    postgres.folder.chmod(0o711)
    assert _works(postgres)[0] == "kept"


def test_a_cluster_of_another_version_is_refused_untouched(open_folder: Path) -> None:
    postgres = StartedPostgres(open_folder / "postgres", free_port(), PASSWORDS)
    postgres.data.mkdir(parents=True)
    postgres.folder.chmod(0o711)
    (postgres.data / "PG_VERSION").write_text("14\n")
    with pytest.raises(StackError, match="made by PostgreSQL 14"):
        postgres.prepare()


def test_a_wrong_program_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_POSTGRES_BIN, str(tmp_path))
    with pytest.raises(StackError, match="holds no initdb"):
        postgres_bin()

"""A backup is the database of one moment; it comes back whole or not at all, and routers take the tables that follow."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from controlplane.core import names
from controlplane.core.backups import Manifest, Target, plausible, restore_problem, risen_epoch
from controlplane.core.signing import seal, table_key
from controlplane.stack.pgtools import Login, tools_for
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT
from controlplane.stack.testing import SERVERS
from tests.integration.control_kit import until
from tests.integration.upkeep_kit import database, manage, owner

MANIFEST = Manifest(1, 0.0, "0.1.0", 18, 18, "owner", "app", ("fleet.0001",), 3, 9, True, "", 0)
TARGET = Target(18, "owner", "app")


@pytest.mark.parametrize(
    ("manifest", "target", "force", "said"),
    [
        (MANIFEST, TARGET, False, ""),
        (replace(MANIFEST, server=16), TARGET, False, ""),
        (replace(MANIFEST, format=2), TARGET, True, "format 2"),
        (replace(MANIFEST, migrations=("fleet.9999",)), TARGET, True, "newer version (0.1.0), which has fleet.9999"),
        (MANIFEST, replace(TARGET, server=16), True, "restore into PostgreSQL 18 or newer"),
        (MANIFEST, replace(TARGET, app="web"), True, "is called 'app', here 'web'"),
        (MANIFEST, replace(TARGET, tables=3), False, "--force"),
        (MANIFEST, replace(TARGET, sessions=1), False, "1 other sessions"),
        (MANIFEST, replace(TARGET, tables=3, sessions=1), True, ""),
    ],
)
def test_a_backup_goes_only_where_it_fits(manifest: Manifest, target: Target, force: bool, said: str) -> None:
    problem = restore_problem(manifest, target, {"fleet.0001", "fleet.0002"}, force=force)
    assert said in problem and bool(said) == bool(problem)


@pytest.mark.parametrize(
    "changed",
    [
        {"made_at": 1e300},
        {"made_at": float("nan")},
        {"epoch": 2**70},
        {"generation": -1},
        {"tool": 10**9},
        {"server": 0},
        {"owner": "x" * 9000},
        {"twinpool": "\x1b[2J"},
        {"migrations": ("fleet.0001\n",)},
    ],
)
def test_what_no_backup_says_of_itself_is_not_believed(changed: dict[str, Any]) -> None:
    assert plausible(MANIFEST) and not plausible(replace(MANIFEST, **changed))


def test_the_epoch_rises_above_all_that_are_known() -> None:
    assert risen_epoch(3, 0, 7) == 8


def test_a_password_is_never_an_argument() -> None:
    login = Login.of("postgresql://owner:s%40cret@db:5432/twinpool?sslmode=require")
    assert login.url == "postgresql://owner@db:5432/twinpool?sslmode=require" and login.env["PGPASSWORD"] == "s@cret"
    assert "s@cret" not in repr(login)


def members(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as tar:
        opened = tar.extractfile("manifest.json")
        assert opened
        return dict(json.load(opened))


def may(env: dict[str, str], verb: str, table: str) -> bool:
    """Whether the application's role has this right."""
    return bool(owner(env, f"SELECT has_table_privilege('app', '{table}', '{verb}')")[0][0])


def catalog(env: dict[str, str]) -> list[Any]:
    """Tables, indexes, sequences, functions with owners and rights; constraints, triggers, what new tables would get."""
    parts = (
        "SELECT relname, relkind, relowner::regrole::text, "
        "(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(relacl) a), "
        "pg_get_expr(relpartbound, oid) FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT proname, prosecdef, proowner::regrole::text, proacl::text, proconfig::text, md5(prosrc) "
        "FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
        "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2",
        "SELECT defaclrole::regrole::text, defaclobjtype, defaclacl::text FROM pg_default_acl ORDER BY 1, 2",
        "SELECT nspname, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(nspacl) a) FROM pg_namespace "
        "WHERE nspname = 'public'",
    )
    return [owner(env, part) for part in parts]


def damaged(file: Path) -> Path:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    copy = file.with_name("damaged")
    copy.write_bytes(content)
    return copy


def junk(folder: Path) -> Path:
    (folder / "junk").write_bytes(b"not a backup at all" * 100)
    return folder / "junk"


def test_what_was_backed_up_comes_back_whole_or_not_at_all(
    postgres: EmbeddedPostgres, valkey: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "kept.backup"
    with database(postgres, "upkeep_a") as env, database(postgres, "upkeep_b") as other:
        assert manage(env, "backup", str(file)).stderr.startswith("twinpool: the database is empty")
        assert manage(env, "migrate", "--database", "owner", "-v0").returncode == 0
        owner(env, "INSERT INTO fleet_team (name) VALUES ('search')")
        owner(env, "INSERT INTO fleet_tablestate (id, epoch, generation) VALUES (1, 2, 40)")
        whole = catalog(env)
        made = manage(env, "backup", str(file))
        assert made.returncode == 0, made.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        told = members(file)
        assert (told["epoch"], told["generation"], told["owner"], told["app"]) == (2, 40, "owner", "app")
        assert "already" in manage(env, "backup", str(file)).stderr

        owner(env, "INSERT INTO fleet_team (name) VALUES ('younger')")
        owner(env, "CREATE TABLE of_a_later_version (id int)")
        refused = manage(env, "restore", str(file))
        assert refused.returncode == 1 and "--force" in refused.stderr and refused.stderr.count("\n") == 1
        for wrong, said in ((damaged(file), "checksum"), (junk(tmp_path), "no backup"), (tmp_path / "none", "No such file")):
            told_why = manage(env, "restore", str(wrong), "--force").stderr
            assert said in told_why and told_why.count("\n") == 1
        assert len(owner(env, "SELECT name FROM fleet_team")) == 2, "a refusal changes nothing"

        # Routers have seen a table of epoch 5: the restored database begins above it.
        valkey.set(names.TABLE_KEY, seal(table_key(SERVERS.state.fleet_secret()), {"epoch": 5, "generation": 1}))
        done = manage(env, "restore", str(file), "--force")
        assert done.returncode == 0, done.stderr
        assert owner(env, "SELECT name FROM fleet_team") == [("search",)]
        assert owner(env, "SELECT epoch, generation FROM fleet_tablestate") == [(6, 40)]
        assert owner(env, "SELECT to_regclass('public.of_a_later_version')") == [(None,)]

        # Into an empty one without --force, with the same rights: history stays append-only for the application.
        assert manage(other, "restore", str(file)).returncode == 0
        for restored in (env, other):
            assert catalog(restored) == whole
            assert [may(restored, verb, "fleet_auditentry") for verb in ("INSERT", "UPDATE", "DELETE")] == [
                True,
                False,
                False,
            ]
            assert not may(restored, "INSERT", "django_migrations")
            owner(restored, "CREATE TABLE made_later (id int)")
            assert may(restored, "INSERT", "made_later")
        assert manage(other, "migrate", "--database", "owner", "--check").returncode == 0, "nothing is left to migrate"


def repacked(file: Path, name: str, *, lines: tuple[bytes, bytes] = (b"", b""), **changed: Any) -> Path:
    """The same dump with another manifest; `lines`: with a line of it replaced by another, and the checksum of that."""
    with tarfile.open(file) as tar:
        opened = tar.extractfile("database.dump")
        assert opened
        dump = opened.read().replace(*lines, 1)
    changed["sha256"] = hashlib.sha256(dump).hexdigest()
    copy = file.with_name(name)
    with tarfile.open(copy, "w") as tar:
        for member, content in (("manifest.json", json.dumps(members(file) | changed).encode()), ("database.dump", dump)):
            head = tarfile.TarInfo(member)
            head.size = len(content)
            tar.addfile(head, io.BytesIO(content))
    return copy


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Room for 64 KB. Skips what needs it where none can be mounted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def restoring(env: dict[str, str]) -> list[Any]:
    return owner(env, "SELECT pid FROM pg_stat_activity WHERE application_name = 'psql' AND datname = current_database()")


def test_whatever_ends_a_restore_leaves_the_database_as_it_was(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    file = tmp_path / "kept.backup"
    with database(postgres, "upkeep_c") as env:
        assert manage(env, "migrate", "--database", "owner", "-v0").returncode == 0
        assert manage(env, "backup", str(file)).returncode == 0
        owner(env, "INSERT INTO fleet_team (name) VALUES ('younger')")
        refused = manage(env, "restore", str(repacked(file, "late", made_at=1e300)), "--force")
        assert refused.returncode == 1 and "damaged manifest" in refused.stderr and refused.stderr.count("\n") == 1

        line = b"CREATE TABLE public.fleet_team ("
        hostile = repacked(file, "hostile", lines=(line, b"\n\\! touch hacked\n".ljust(len(line))))
        refused = manage(env, "restore", str(hostile), "--force")
        assert refused.returncode == 1 and "nothing was changed" in refused.stderr and refused.stderr.count("\n") == 1
        assert not (ROOT / "hacked").exists(), "psql has run a program that a backup names"
        assert owner(env, "SELECT name FROM fleet_team") == [("younger",)]

        with psycopg.connect(env[names.ENV_DATABASE_OWNER_URL]) as holder:  # so that the restore is met half-way
            holder.execute("LOCK TABLE fleet_team")
            killed = subprocess.Popen([sys.executable, "manage.py", "restore", str(file), "--force"], cwd=ROOT, env=env)
            until("under way", lambda: restoring(env), 60)
            killed.kill()
            killed.wait()
        until("given up", lambda: not restoring(env), 60)
        assert owner(env, "SELECT name FROM fleet_team") == [("younger",)]

        with small_disk(tmp_path / "small") as small:
            for words, more, remedy in (
                (("backup", f"{small}/b.backup"), {}, "name a file elsewhere"),
                (("restore", str(file), "--force"), {"TMPDIR": str(small)}, "set TMPDIR"),
            ):
                full = manage(env | more, *words)
                assert full.returncode == 1 and remedy in full.stderr and full.stderr.count("\n") == 1, full.stderr
            assert list(small.iterdir()) == []
        assert owner(env, "SELECT name FROM fleet_team") == [("younger",)]

        assert manage(env, "restore", str(file), "--force").returncode == 0
        assert owner(env, "SELECT name FROM fleet_team") == []


def test_an_older_backup_comes_to_the_schema_of_today(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    file = tmp_path / "old.backup"
    with database(postgres, "upkeep_o") as env:
        older = manage(env, "migrate", "fleet", "0017_join_tokens", "--database", "owner", "-v0")
        assert older.returncode == 0, older.stderr
        owner(env, "INSERT INTO fleet_team (name) VALUES ('search')")
        assert manage(env, "backup", str(file)).returncode == 0
        done = manage(env, "restore", str(file), "--force")
        assert done.returncode == 0, done.stderr
        assert owner(env, "SELECT name FROM fleet_team") == [("search",)]
        assert manage(env, "migrate", "--database", "owner", "--check").returncode == 0, "nothing is left to migrate"


def test_programs_of_an_older_postgresql_are_not_used() -> None:
    with pytest.raises(Exception, match="PostgreSQL 99 or newer are here"):
        tools_for(99)

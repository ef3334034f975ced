"""`manage.py restore FILE`: a backup in the database's place, in one transaction: all see the old rows or the new ones.

The routing table's epoch rises above every one that a router may know, so that routers take the next table although its
generation is lower than the one they have.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import django
import psycopg
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader

from controlplane.core.backups import (
    DUMP,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    Target,
    plausible,
    restore_problem,
    risen_epoch,
)
from controlplane.core.codec import WrongShape, decode
from controlplane.stack import endpoints
from controlplane.stack.backup import Roles, fingerprint, first_line, login_roles, reason, server_major
from controlplane.stack.errors import StackError
from controlplane.stack.folder import chosen
from controlplane.stack.known_epochs import known_epoch
from controlplane.stack.pgtools import Login, tools_for

_HEAD_LINES = 60
"""Within so many lines of a dump's script are its settings."""

# What is in the schema and not in the backup (later migrations, younger partitions) has to go too.
_EMPTY = """
SET lock_timeout = '30s';
DO $empty$
DECLARE each record;
BEGIN
  FOR each IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  LOOP EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', each.name); END LOOP;
  FOR each IN SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'public' AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
  LOOP EXECUTE format('DROP ROUTINE IF EXISTS %s CASCADE', each.name); END LOOP;
  FOR each IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind = 'S'
  LOOP EXECUTE format('DROP SEQUENCE IF EXISTS %s CASCADE', each.name); END LOOP;
  -- A dump tells rights as they differ from a new database's: what tables get by themselves here would come on top, as the
  -- right to change the audit.
  FOR each IN SELECT DISTINCT x.grantee::regrole AS role, d.defaclobjtype AS kind
    FROM pg_default_acl d CROSS JOIN LATERAL aclexplode(d.defaclacl) x
    WHERE d.defaclrole = current_user::regrole AND d.defaclnamespace = 'public'::regnamespace
      AND x.grantee <> 0 AND d.defaclobjtype IN ('r', 'S', 'f')
  LOOP EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE ALL ON %s FROM %s',
    CASE each.kind WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' ELSE 'FUNCTIONS' END, each.role); END LOOP;
END $empty$;
"""

_RAISE = """
INSERT INTO public.fleet_tablestate (id, epoch, generation) VALUES (1, {epoch}, 0)
ON CONFLICT (id) DO UPDATE SET epoch = {epoch};
COMMIT;
"""


def run(arguments: Sequence[str], root: Path) -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py restore",
        description="Put a backup in the database's place. Best stop control and ingest first.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--force", action="store_true", help="also over a database that holds something or is in use")
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    endpoints.adopt(state)
    django.setup()
    manifest, epoch = put_back(read.file, force=read.force)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.made_at))
    print(f"twinpool: the database is as it was at {when}; the next routing table has epoch {epoch}")
    print("twinpool: keys and users that were revoked since are valid again: look through them (manage.py list_keys)")
    if manifest.fleet and manifest.fleet != fingerprint(state):
        remedy = "put the old one back, or let every node join again"
        print(f"twinpool: the fleet secret is another than then: {remedy}", file=sys.stderr)
    return 0


def put_back(file: Path, *, force: bool) -> tuple[Manifest, int]:
    """Restore and migrate. Returns what was restored and the epoch it has now. Raises StackError; then, unless it says that
    only the migrations are missing, nothing was changed."""
    roles = login_roles()
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    try:
        with tarfile.open(file, mode="r:") as tar, psycopg.connect(roles.owner_url, connect_timeout=5) as connection:
            manifest = _manifest(tar, file)
            target, epoch = _look(connection, roles)
            connection.rollback()
            if problem := restore_problem(manifest, target, known, force=force):
                raise StackError(f"{file} cannot be restored: {problem}")
            with tempfile.TemporaryDirectory(prefix="restore-") as folder:
                dump = Path(folder) / DUMP
                _unpack(tar, manifest, dump, file)
                epoch = risen_epoch(manifest.epoch, epoch, known_epoch())
                _replay(manifest, dump, Login.of(roles.owner_url), epoch)
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise StackError(f"{file} is no backup, or damaged: take another copy") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StackError(f"{tempfile.gettempdir()} has no room for the dump: free some, or set TMPDIR") from error
        raise StackError(f"cannot read {file}: {error.strerror or error}; name a file that is there") from error
    except psycopg.Error as error:
        raise StackError(f"the database does not answer: {first_line(error)}; start it, or correct its URL") from error
    if known - set(manifest.migrations):
        call_command("migrate", database="owner", interactive=False, verbosity=0)
    return manifest, epoch


def _manifest(tar: tarfile.TarFile, file: Path) -> Manifest:
    member = tar.next()
    if member is None or member.name != MANIFEST or not member.isfile() or member.size > MAX_MANIFEST_BYTES:
        raise StackError(f"{file} is no backup: name a file that `manage.py backup` wrote")
    opened = tar.extractfile(member)
    assert opened is not None
    try:
        manifest = decode(Manifest, json.loads(opened.read()))
        if plausible(manifest):
            return manifest
        problem = None
    except (ValueError, RecursionError, WrongShape) as error:
        problem = error
    raise StackError(f"{file} has a damaged manifest: take another copy") from problem


def _unpack(tar: tarfile.TarFile, manifest: Manifest, dump: Path, file: Path) -> None:
    """The dump, if it is the one that was written. A member's own name and mode mean nothing here."""
    member = tar.next()
    opened = tar.extractfile(member) if member is not None and member.name == DUMP and member.isfile() else None
    if opened is None:
        raise StackError(f"{file} is cut short: take another copy")
    seen = hashlib.sha256()
    with dump.open("wb") as target:
        while part := opened.read(1 << 20):
            seen.update(part)
            target.write(part)
    if seen.hexdigest() != manifest.sha256:
        raise StackError(f"{file} is damaged (its checksum is another): take another copy")


def _look(connection: psycopg.Connection[Any], roles: Roles) -> tuple[Target, int]:
    """What is there now, and its routing table's epoch."""
    tables = _number(connection, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    sessions = _number(
        connection,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND coalesce(backend_type, 'client backend') = 'client backend'",
    )
    has = connection.execute("SELECT to_regclass('public.fleet_tablestate')").fetchone() != (None,)
    epoch = _number(connection, "SELECT coalesce(max(epoch), 0) FROM public.fleet_tablestate") if has else 0
    return Target(server_major(connection), roles.owner, roles.app, tables, sessions), epoch


def _number(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _replay(manifest: Manifest, dump: Path, login: Login, epoch: int) -> None:
    """The dump's script through psql between BEGIN and COMMIT: without the COMMIT, which comes only after pg_restore has
    ended well, the server takes everything back."""
    reader = tools_for(manifest.tool, tls=login.tls)
    restoring = reader.argv("pg_restore", "--no-owner", "--file=-", str(dump))
    typing = reader.argv("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "--no-password", f"--dbname={login.url}", "--file=-")
    with tempfile.TemporaryFile() as complaints:
        source = subprocess.Popen(restoring, stdout=subprocess.PIPE, stderr=complaints)
        sink = subprocess.Popen(
            typing, env=dict(login.env), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints
        )
        try:
            _pass_on(source, sink, epoch)
        finally:
            for process in (source, sink):
                if process.poll() is None:
                    process.kill()
                process.wait()
        complaints.seek(0)
        said = complaints.read(1 << 16).decode(errors="replace")
    if source.returncode or sink.returncode:
        raise StackError(f"the backup was not restored and nothing was changed: {reason(said)}")


def _pass_on(source: subprocess.Popen[bytes], sink: subprocess.Popen[bytes], epoch: int) -> None:
    assert source.stdout and sink.stdin
    try:
        sink.stdin.write(b"BEGIN;\n" + _EMPTY.encode())
        _copy(source.stdout, sink.stdin)
        if source.wait() == 0:
            sink.stdin.write(_RAISE.format(epoch=int(epoch)).encode())
        sink.stdin.close()
        sink.wait()
    except BrokenPipeError:  # psql has ended and told why
        sink.wait()
    finally:
        source.stdout.close()


def _copy(script: IO[bytes], into: IO[bytes]) -> None:
    """All of it, but a setting that servers before 17 do not know."""
    for _ in range(_HEAD_LINES):
        if (line := script.readline()).strip() != b"SET transaction_timeout = 0;":
            into.write(line)
    while part := script.read(1 << 20):
        into.write(part)

"""What a backup says of itself, and whether it may be restored somewhere. Pure.

A backup is a tar of two members: MANIFEST, then DUMP, PostgreSQL's custom format. The keys of the state folder are not in
it: whoever reads a backup can read the fleet's rows, and cannot speak for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FORMAT = 1
MANIFEST, DUMP = "manifest.json", "database.dump"
MAX_MANIFEST_BYTES = 1 << 20
MOST_NAMED = 3
MOST_ROLE_CHARACTERS, MOST_NAME_CHARACTERS = 63, 200
END_OF_TIME_S = 253_402_300_800
"""The year 10,000."""
MOST_STAMP = 1 << 62
"""Of what PostgreSQL keeps in a bigint, so that it can still rise."""


@dataclass(frozen=True)
class Manifest:
    """`made_at` is Unix seconds; `server` and `tool` are PostgreSQL's major version and that of pg_dump; `migrations` are
    written app.name; `fleet` tells fleet secrets apart (empty: not known) without telling them."""

    format: int
    made_at: float
    twinpool: str
    server: int
    tool: int
    owner: str
    app: str
    migrations: tuple[str, ...]
    epoch: int
    generation: int
    telemetry: bool
    sha256: str
    bytes: int
    fleet: str = ""


@dataclass(frozen=True)
class Target:
    """Where a backup is to go. `tables`: how many of the schema's tables are there already; `sessions`: who else is
    connected to the database now."""

    server: int
    owner: str
    app: str
    tables: int = 0
    sessions: int = 0


def plausible(manifest: Manifest) -> bool:
    """Whether `backup` could have written this."""
    names = (manifest.twinpool, manifest.fleet, *manifest.migrations)
    return (
        0 <= manifest.made_at < END_OF_TIME_S
        and all(0 < major < 1000 for major in (manifest.server, manifest.tool))
        and all(0 <= number < MOST_STAMP for number in (manifest.epoch, manifest.generation, manifest.bytes))
        and all(role.isprintable() and len(role) <= MOST_ROLE_CHARACTERS for role in (manifest.owner, manifest.app))
        and all(name.isprintable() and len(name) <= MOST_NAME_CHARACTERS for name in names)
    )


def restore_problem(manifest: Manifest, target: Target, known: Collection[str], *, force: bool) -> str:
    """Why this backup may not be restored there, with the remedy; empty if it may. `known`: this program's migrations."""
    if manifest.format != FORMAT:
        return f"it has format {manifest.format}, this program reads {FORMAT}: restore it with version {manifest.twinpool}"
    if newer := sorted(set(manifest.migrations) - set(known)):
        some = ", ".join(newer[:MOST_NAMED]) + (", …" if len(newer) > MOST_NAMED else "")
        return f"it was made by a newer version ({manifest.twinpool}), which has {some}: install that version or a later one"
    if target.server < manifest.server:
        return (
            f"it comes from PostgreSQL {manifest.server}, this server is {target.server}: "
            f"restore into PostgreSQL {manifest.server} or newer"
        )
    for role, was, now in (("owner", manifest.owner, target.owner), ("application's role", manifest.app, target.app)):
        if was != now:
            return f"its {role} is called {was!r}, here {now!r}: rights go by name, so use a role {was!r} in the URL"
    if not force and (target.tables or target.sessions):
        return (
            f"the database is in use ({target.tables} tables, {target.sessions} other sessions): stop what uses it and name "
            "an empty one, or say --force to put the backup in its place"
        )
    return ""


def risen_epoch(*epochs: int) -> int:
    """The epoch of a restored database: above every one that a router may know, so that the next table is taken."""
    return max(epochs) + 1

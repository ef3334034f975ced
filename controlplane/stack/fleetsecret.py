"""`manage.py fleet-secret export|import`: the fleet secret, with those that are believed beside it, from one machine to the
next while it is changed (docs/access.md). Needs neither the database nor Valkey: machines of routers have no other."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common.files import BadKey
from controlplane.common.keyring import MAX_RING_BYTES, WHAT, Ring, parse_ring, read_ring, ring_path, ring_text, write_ring
from controlplane.core import names
from controlplane.stack.errors import StackError
from controlplane.stack.folder import chosen


def run(arguments: Sequence[str], root: Path) -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py fleet-secret",
        description="Carry the fleet secret to another machine: `… fleet-secret export | ssh HOST … fleet-secret import`.",
    )
    parser.add_argument("step", choices=("export", "import"), help="to standard output; from standard input")
    parser.add_argument("--file", type=Path, metavar="FILE", help=f"default: {names.ENV_FLEET_SECRET_FILE}, else --state's")
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    named = read.file or os.environ.get(names.ENV_FLEET_SECRET_FILE)
    path = Path(named) if named else chosen(read.state, root).fleet_key
    try:
        return _export(path) if read.step == "export" else _import(path)
    except BadKey as error:
        raise StackError(str(error)) from error


def _export(path: Path) -> int:
    if sys.stdout.isatty():
        raise StackError(
            "this is a secret: send it to `manage.py fleet-secret import` on another machine, not to a terminal"
        )
    print(ring_text(read_ring(path)))
    return 0


def _import(path: Path) -> int:
    if sys.stdin.isatty():
        raise StackError("send the output of `manage.py fleet-secret export` here")
    coming = parse_ring(sys.stdin.read(MAX_RING_BYTES), "what came on standard input")
    here = read_ring(path) if path.exists() or ring_path(path).exists() else None
    if here and (problem := refused(here, coming)):
        raise StackError(problem)
    if here != coming:
        try:
            _write(path, coming)
        except OSError as error:
            raise StackError(
                f"cannot write {WHAT} {path}: {error.strerror}; make its folder, or correct its rights"
            ) from error
    believed = ", ".join(map(str, sorted(coming.keys)))
    print(f"twinpool: {path}: secret {coming.generation} signs, {believed} are believed", file=sys.stderr)
    return 0


def refused(here: Ring, coming: Ring) -> str:
    """Why these secrets may not take the place of those; empty if they may."""
    both = here.keys.keys() & coming.keys.keys()
    if not both or any(here.keys[number] != coming.keys[number] for number in both):
        return "these are secrets of another fleet, or too far on: move the files here away first, if they are to go"
    if coming.generation < here.generation or max(coming.keys) < max(here.keys):
        return "these secrets are older than those here: export them again where control works"
    return ""


def _write(path: Path, ring: Ring) -> None:
    """As whoever owned the file, or its folder: root may do this for a service that must read it."""
    owner = (path if path.exists() else path.parent).stat()
    write_ring(path, ring)
    if os.geteuid() == 0:
        for file in (path, ring_path(path)):
            os.chown(file, owner.st_uid, owner.st_gid)

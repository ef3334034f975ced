"""How to run a program that refuses root (PostgreSQL), without touching anything outside our own folder.

As an ordinary user it simply runs. As root, in order of preference:
  1. `drop`: as an unprivileged uid, if that uid reaches both the programs and the data folder;
  2. `copy`: the same with a copy of the programs inside our folder, if only the programs are out of its reach;
  3. `namespace`: inside a user namespace in which our root looks like an ordinary user (folders below a 0700 home).
Each choice is made by trying it, from `/`, never by guessing from modes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.names import ENV_DATABASE_URL
from controlplane.stack.errors import StackError


@dataclass(frozen=True)
class Identity:
    """How programs are run and whom their files belong to."""

    uid: int
    gid: int
    bin: Path
    prefix: tuple[str, ...] = ()
    spawn: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments for subprocess.Popen."""

    def argv(self, program: str, *args: str) -> list[str]:
        return [*self.prefix, str(self.bin / program), *args]

    def give(self, path: Path) -> None:
        """Make a path inside our own folder belong to the identity."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_tree(self, folder: Path) -> None:
        """Make a folder of ours and all below it belong to the identity. Cheap when it already does."""
        if os.geteuid() != 0 or folder.stat().st_uid == self.uid:
            return
        for root, _, files in os.walk(folder):
            for name in files:
                self.give(Path(root) / name)
            self.give(Path(root))


def identity_for(programs: Path, home: Path) -> Identity:
    """The identity that can run `programs/postgres` on data below `home` (exists, ours). Raises StackError if none can."""
    if os.geteuid() != 0:
        return Identity(os.geteuid(), os.getegid(), programs)
    account = _unprivileged()
    if _can_reach(account, home):
        dropped = _dropped(account, programs)
        if _runs(dropped):
            return dropped
        copied = _dropped(account, _copy_programs(programs, home))
        if _runs(copied):
            return copied
    prefix = ("unshare", "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}")
    if shutil.which("unshare") and _runs(inside := Identity(0, 0, programs, prefix)):
        return inside
    raise StackError(
        f"PostgreSQL does not run as root, and no other user reaches {home} here: choose a state folder that others may "
        f"pass through (--state /var/lib/twinpool), start as an ordinary user, or set {ENV_DATABASE_URL}"
    )


def _unprivileged() -> pwd.struct_passwd:
    """An account without rights: initdb insists that its uid has a name."""
    for name in ("nobody", "daemon"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid != 0:
            return account
    raise StackError("this system has neither a user `nobody` nor `daemon`: add one, or start as an ordinary user")


def _dropped(account: pwd.struct_passwd, programs: Path) -> Identity:
    spawn = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return Identity(account.pw_uid, account.pw_gid, programs, spawn=spawn)


def _can_reach(account: pwd.struct_passwd, folder: Path) -> bool:
    command = ["test", "-x", str(folder)]
    spawn = _dropped(account, folder).spawn
    return subprocess.run(command, cwd="/", check=False, **spawn).returncode == 0


def _runs(identity: Identity) -> bool:
    try:
        command = identity.argv("postgres", "--version")
        return subprocess.run(command, cwd="/", capture_output=True, check=False, **identity.spawn).returncode == 0
    except OSError:
        return False


def _copy_programs(programs: Path, home: Path) -> Path:
    """Copy an installation (with the wheel's sibling libraries) below `home`; a finished copy of the same one is kept."""
    install, target = programs.parent, home / "programs"
    stamp, identifier = target / "complete", f"{install} {(programs / 'postgres').stat().st_mtime_ns}"
    if not (stamp.is_file() and stamp.read_text() == identifier):
        shutil.rmtree(target, ignore_errors=True)
        # The wheel's programs look for their libraries two folders up, in <package>.libs.
        package = target / install.parent.name
        shutil.copytree(install, package / install.name, symlinks=True)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        target.chmod(0o755)
        stamp.write_text(identifier)
    return target / install.parent.name / install.name / programs.name

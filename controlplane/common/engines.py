"""Which living processes belong to engines: found by what an engine's environment carries, and by its session.

Both are needed. A child in a session of its own still carries the marker; a child that overwrote its environment (vLLM's
engine core does, through its process title) is still in the engine's session. So agents write down every engine's session.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from controlplane.common.files import write_private
from controlplane.common.processes import environment, identity, variable
from controlplane.core.names import ENV_ENGINE_HOME, ENV_ENGINE_MARKER


@dataclass(frozen=True)
class Member:
    """A living process of the engine that `marker` names. `leader`: it is the engine itself and no child of it."""

    pid: int
    identity: str
    marker: str
    leader: bool


@dataclass(frozen=True)
class Session:
    """The session of an engine; its id is the `pid` of its leader, whose start `identity` names."""

    pid: int
    identity: str
    marker: str
    folder: str
    """Where the engine was started."""

    def holds(self, pid: int) -> bool:
        """Whether a process with this session's id is of this session. While one is left, Linux gives the id to no other,
        but a session that ended unseen may have a successor: its leader is another, or its processes show another origin."""
        if leader := identity(self.pid):
            return leader == self.identity
        try:
            environ = environment(pid).strip(b"\0 ")
            inside = Path(f"/proc/{pid}/cwd").readlink().as_posix().startswith(self.folder)
        except OSError:
            return False
        same_boot = identity(os.getpid()).partition(":")[0] == self.identity.partition(":")[0]
        return same_boot and (not environ or inside)


def note(home: Path, session: Session) -> None:
    """Writes down the session of an engine of the state folder `home`. Raises OSError."""
    _folder(home).mkdir(mode=0o700, exist_ok=True)
    write_private(_folder(home) / str(session.pid), json.dumps(asdict(session)).encode())


def forget(home: Path, marker: str) -> None:
    """Removes the sessions of an engine of which no process is left. Raises OSError."""
    for session in _sessions(home):
        if session.marker == marker:
            (_folder(home) / str(session.pid)).unlink(missing_ok=True)


def members(home: Path) -> Iterator[Member]:
    """The living processes of all engines that agents of the state folder `home` started."""
    noted = {session.pid: session for session in _sessions(home)}
    for pid in psutil.pids():
        try:
            sid = os.getsid(pid)
        except OSError:  # it ended
            continue
        marker = variable(pid, ENV_ENGINE_MARKER) if variable(pid, ENV_ENGINE_HOME) == str(home) else ""
        if not marker and (session := noted.get(sid)) and session.holds(pid):
            marker = session.marker
        if marker and (who := identity(pid)):
            yield Member(pid, who, marker, leader=sid == pid)


def _sessions(home: Path) -> Iterator[Session]:
    for file in sorted(_folder(home).glob("[0-9]*")):
        try:
            yield Session(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue  # it was just removed, or is damaged: the marker finds most of what it would have


def _folder(home: Path) -> Path:
    return home / "sessions"

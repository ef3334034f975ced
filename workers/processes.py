"""Engine processes: started as sessions of their own, recognised after any death of the agent, watched, killed whole.

A process is *identified* by its pid and start time (a pid alone is reused), and *found* by the marker in its environment,
which every child it makes inherits, or by its session (controlplane.common.engines).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.common import engines
from controlplane.common.processes import how_ended, identity
from controlplane.core.names import ENV_ENGINE_HOME, ENV_ENGINE_MARKER

log = logging.getLogger(__name__)

POLL_S = 1.0

_PASSED_ON = frozenset(
    {
        "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "VIRTUAL_ENV",
    }
)  # fmt: skip
_PASSED_ON_PREFIXES = ("NCCL_", "UCX_", "CUDA_", "NVIDIA_")


@dataclass(frozen=True)
class Marker:
    """Whose process it is."""

    node: str
    engine: str
    rank: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}/{self.engine}/{self.rank}/{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Marker | None:
        parts = text.split("/")
        if len(parts) != 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))


@dataclass(frozen=True)
class Marked:
    """A living process of an engine. `leader`: it leads its session, so it is the engine itself and no child."""

    pid: int
    identity: str
    marker: Marker
    leader: bool


@dataclass(frozen=True)
class Exit:
    """How a process ended. `code` as subprocess gives it (negative: a signal); None: not our child, so nobody can tell."""

    code: int | None

    def __str__(self) -> str:
        return how_ended(self.code)


def marked(home: Path) -> Iterator[Marked]:
    """The living processes that agents of the state folder `home` started, and their children."""
    for each in engines.members(home):
        if marker := Marker.parse(each.marker):
            yield Marked(each.pid, each.identity, marker, each.leader)


def kill_marked(home: Path, marker: Marker) -> int:
    """SIGKILL to every living process with this marker, and to those they start meanwhile. Returns how many there were."""
    killed: set[str] = set()
    while True:
        new = [each for each in marked(home) if each.marker == marker and f"{each.pid}:{each.identity}" not in killed]
        if not new:
            with contextlib.suppress(OSError):  # a full disk: a session without processes does no harm
                engines.forget(home, str(marker))
            return len(killed)
        for each in new:
            _send(each.pid, each.identity, signal.SIGKILL)
            killed.add(f"{each.pid}:{each.identity}")


def _send(pid: int, who: str, number: signal.Signals) -> None:
    """A signal to the process `who` and to no other that got its pid: a pidfd names one process for ever."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel without pidfd: a small window remains
        if identity(pid) == who:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    try:
        if identity(pid) == who:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


def child_environment(own: Mapping[str, str], launch: Mapping[str, str], marker: Marker, home: Path) -> dict[str, str]:
    """What an engine gets: a few harmless variables of the agent (never its broker URL or key file), the driver's, and
    the marker."""
    kept = {name: value for name, value in own.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)}
    return {**kept, **launch, ENV_ENGINE_MARKER: str(marker), ENV_ENGINE_HOME: str(home)}


@dataclass
class EngineProcess:
    """A running engine process, started here (`child`) or adopted."""

    pid: int
    identity: str
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def spawn(cls, argv: tuple[str, ...], env: Mapping[str, str], folder: Path, log_file: Path) -> EngineProcess:
        """Starts a process in a session of its own, whose output goes to `log_file` without passing the agent. Raises
        OSError when it cannot be started."""
        log_fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
            )
        finally:
            os.close(log_fd)
        # A child that has ended already is a zombie without identity: `wait` will see it at once.
        process = cls(child.pid, identity(child.pid), child)
        if home := env.get(ENV_ENGINE_HOME):
            session = engines.Session(process.pid, process.identity, env[ENV_ENGINE_MARKER], str(folder))
            try:
                engines.note(Path(home), session)
            except OSError as error:
                log.error("the session of engine %s cannot be written down: %s", session.marker, error)
        return process

    def alive(self) -> bool:
        return bool(self.identity) and identity(self.pid) == self.identity

    def terminate(self) -> None:
        """SIGTERM to the engine alone: it must end its own children in order."""
        _send(self.pid, self.identity, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the engine's process group. Only while `alive`; stragglers are found by `kill_marked`."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> Exit:
        """Returns when the process has ended. Costs nothing while it runs where the kernel has pidfd."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return self._reap()
        except OSError:
            while self.alive():  # noqa: ASYNC110  # the kernel tells nothing here
                await asyncio.sleep(POLL_S)
            return self._reap()
        try:
            # The check comes after the open, so the descriptor cannot belong to a later process of the same pid.
            if self.alive():
                await _readable(fd)
        finally:
            os.close(fd)
        return self._reap()

    def _reap(self) -> Exit:
        return Exit(self.child.wait() if self.child else None)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(fd)

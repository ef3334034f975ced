"""A pytest plugin: real PostgreSQL and Valkey for the tests, made when the first test asks for them.

Loaded with `-p controlplane.stack.testing` before Django's settings are, because those read the environment once: so ports
and passwords are chosen here at import, and the servers start later under exactly these. A watchdog (lifeline.py) ends the
servers and removes their folder even if pytest is killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from controlplane.core import names
from controlplane.router import compiled
from controlplane.stack import endpoints, lifeline
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres, PostgresPasswords, PostgresUrls
from controlplane.stack.valkey import EmbeddedValkey


class _Started:
    """A server as a child of this process, in place of the stack's supervisor."""

    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """0 while it is stopped."""
        return self.process.pid if self.process else 0

    def _run(self, command: list[str], ready: Callable[[], bool], log: IO[bytes] | None, **spawn: Any) -> None:
        output = log if log is not None else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **spawn
        )
        deadline = time.monotonic() + 60
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                code = self.process.returncode
                self.stop()
                raise StackError(f"{command[0]} did not start (exit code {code}): its log tells why")
            time.sleep(0.03)

    def stop(self) -> None:
        """Orderly; killed if that takes long."""
        if self.process is None:
            return
        self.process.send_signal(self._stop_signal)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        self.process = None

    _stop_signal = signal.SIGTERM


class StartedPostgres(_Started, EmbeddedPostgres):
    """The stack's PostgreSQL, for a test."""

    _stop_signal = signal.SIGINT

    def start(self, log: IO[bytes] | None = None) -> PostgresUrls:
        """Ready and provisioned when it returns. Raises StackError."""
        self.prepare()
        self._run(self.command(), self.is_ready, log, **self.spawn_options)
        self.provision()
        return self.urls


class StartedValkey(_Started, EmbeddedValkey):
    """The stack's Valkey, for a test."""

    def start(self, log: IO[bytes] | None = None) -> str:
        """Ready when it returns its URL. Raises StackError."""
        self.prepare()
        self._run(self.command(), self.is_ready, log)
        return self.url


@dataclass
class Servers:
    """The servers of this test run. Nothing exists on disk and nothing runs until the first call."""

    state: StateFolder
    postgres: StartedPostgres
    valkey: StartedValkey
    _lifeline: subprocess.Popen[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        command = [sys.executable, lifeline.__file__, str(self.state.path)]
        self._lifeline = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def started_postgres(self) -> StartedPostgres:
        if not self.postgres.pid:
            with (self.state.logs / "postgres.log").open("ab") as log:
                self.postgres.start(log)
            self._watch(self.postgres.pid, signal.SIGQUIT)
        return self.postgres

    def started_valkey(self) -> StartedValkey:
        if not self.valkey.pid:
            with (self.state.logs / "valkey.log").open("ab") as log:
                self.valkey.start(log)
            self._watch(self.valkey.pid, signal.SIGTERM)
        return self.valkey

    def stop(self) -> None:
        """The watchdog does the work here too: one way to end, always tried."""
        assert self._lifeline.stdin
        self._lifeline.stdin.close()
        self._lifeline.wait(30)
        self.postgres.stop()
        self.valkey.stop()

    def _watch(self, pid: int, number: int) -> None:
        assert self._lifeline.stdin
        self._lifeline.stdin.write(f"{pid} {int(number)}\n".encode())
        self._lifeline.stdin.flush()


def _servers() -> Servers:
    path = Path(tempfile.mkdtemp(prefix="twinpool-tests-"))
    state = StateFolder(path).create()
    passwords = PostgresPasswords(*(secrets.token_urlsafe(18) for _ in range(3)))
    postgres = StartedPostgres(state.postgres, free_port(), passwords)
    valkey = StartedValkey(state.valkey, free_port(), secrets.token_urlsafe(18))
    return Servers(state, postgres, valkey)


SERVERS = _servers()
_KEPT = {names.ENV_VLLM_PYTHON, names.ENV_POSTGRES_BIN, names.ENV_VALKEY_BIN, names.ENV_BOOTSTRAP}
_KEPT |= {"TWINPOOL_FUZZ_EXAMPLES", "TWINPOOL_FUZZ_SEED"}  # what tests themselves are told
for _name in [name for name in os.environ if name.startswith("TWINPOOL_") and name not in _KEPT]:
    del os.environ[_name]  # a developer's running stack must not become the test's
endpoints.forget_libpq_settings()
os.environ |= {
    names.ENV_STATE: str(SERVERS.state.path),
    names.ENV_DATABASE_URL: SERVERS.postgres.urls.app,
    names.ENV_DATABASE_OWNER_URL: SERVERS.postgres.urls.owner,
    names.ENV_VALKEY_URL: SERVERS.valkey.url,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compiled-router", action="store_true", help="test the router that manage.py compile-router built, not its source"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--compiled-router"):
        os.environ[names.ENV_ROUTER_BUILDS] = str(SERVERS.state.path / "no-builds")
        return
    problem = compiled.put_in_place()
    if compiled.code() == "interpreted":
        raise pytest.UsageError(problem or "there is no compiled router: run manage.py compile-router first")


def pytest_report_header() -> str:
    return f"router: {compiled.code()}"


@pytest.fixture(scope="session", autouse=True)
def _servers_end_with_the_session() -> Iterator[None]:
    yield
    SERVERS.stop()

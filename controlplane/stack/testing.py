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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.core import names
from controlplane.stack import lifeline
from controlplane.stack.binaries import ENV_POSTGRES_BIN, ENV_VALKEY_BIN
from controlplane.stack.folder import StateFolder
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres, PostgresPasswords
from controlplane.stack.valkey import EmbeddedValkey


@dataclass
class Servers:
    """The servers of this test run. Nothing exists on disk and nothing runs until the first call."""

    state: StateFolder
    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey
    _lifeline: subprocess.Popen[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        command = [sys.executable, lifeline.__file__, str(self.state.path)]
        self._lifeline = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def started_postgres(self) -> EmbeddedPostgres:
        if not self.postgres.pid:
            with (self.state.logs / "postgres.log").open("ab") as log:
                self.postgres.prepare()
                self.postgres.start(log)
            self._watch(self.postgres.pid, signal.SIGQUIT)
        return self.postgres

    def started_valkey(self) -> EmbeddedValkey:
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
    postgres = EmbeddedPostgres(state.postgres, free_port(), passwords)
    valkey = EmbeddedValkey(state.valkey, free_port(), secrets.token_urlsafe(18))
    return Servers(state, postgres, valkey)


SERVERS = _servers()
_KEPT = {names.ENV_VLLM_PYTHON, ENV_POSTGRES_BIN, ENV_VALKEY_BIN, "TWINPOOL_BOOTSTRAP"}
for _name in [name for name in os.environ if name.startswith("TWINPOOL_") and name not in _KEPT]:
    del os.environ[_name]  # a developer's running stack must not become the test's
os.environ |= {
    names.ENV_STATE: str(SERVERS.state.path),
    names.ENV_DATABASE_URL: SERVERS.postgres.urls.app,
    names.ENV_DATABASE_OWNER_URL: SERVERS.postgres.urls.owner,
    names.ENV_VALKEY_URL: SERVERS.valkey.url,
}


@pytest.fixture(scope="session", autouse=True)
def _servers_end_with_the_session() -> Iterator[None]:
    yield
    SERVERS.stop()

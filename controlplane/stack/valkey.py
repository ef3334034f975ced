"""An embedded Valkey: append-only file, no eviction, a password given by a 0600 file, loopback unless told otherwise."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO

from controlplane.common.files import write_private
from controlplane.stack.binaries import valkey_server
from controlplane.stack.errors import StackError

# A full broker must refuse, not forget: what is in it (queues, facts) is bounded by its writers.
_SETTINGS = """\
port {port}
bind {bind}
protected-mode yes
dir {folder}
requirepass {password}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
tcp-keepalive 60
timeout 0
databases 4
loglevel notice
"""


class EmbeddedValkey:
    """One server in `folder` (its parent must exist). `password` must be url-safe text without spaces. `extra_bind` is one
    more address to listen on, for agents of other machines."""

    def __init__(self, folder: Path, port: int, password: str, extra_bind: str = "") -> None:
        self.folder = folder.absolute()
        self.port = port
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._password = password
        self._bind = " ".join(["127.0.0.1", *([extra_bind] if extra_bind else [])])
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Write the folder and the configuration anew."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        settings = _SETTINGS.format(port=self.port, bind=self._bind, folder=f'"{self.folder}"', password=self._password)
        write_private(self._configuration, settings.encode())

    def command(self) -> list[str]:
        return [str(valkey_server()), str(self._configuration)]

    def is_ready(self) -> bool:
        """Whether it takes the password and answers now (it does not while it loads its file)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    if not (part := connection.recv(4096)):
                        return False
                    answer += part
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"

    def start(self, log: IO[bytes] | None = None, timeout_s: float = 30.0) -> str:
        """Start it as a child of this process; returns its URL when it is ready. Raises StackError."""
        self.prepare()
        output = log if log is not None else subprocess.DEVNULL
        self._process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                code = self._process.returncode
                self.stop()
                raise StackError(f"Valkey did not start on port {self.port} (exit code {code}): its log tells why")
            time.sleep(0.02)
        return self.url

    @property
    def pid(self) -> int:
        """The process started by `start`, or 0."""
        return self._process.pid if self._process else 0

    def stop(self, timeout_s: float = 10.0) -> None:
        """Orderly shutdown of what `start` started; killed if that takes longer than `timeout_s`."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)
        self._process = None

    @property
    def _configuration(self) -> Path:
        return self.folder / "valkey.conf"

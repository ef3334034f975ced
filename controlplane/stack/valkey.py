"""An embedded Valkey: append-only file, no eviction, a password given by a 0600 file, loopback unless told otherwise."""

from __future__ import annotations

import socket
from pathlib import Path

from controlplane.common.files import write_private
from controlplane.stack.binaries import valkey_server

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

    def prepare(self) -> None:
        """Write the folder and the configuration anew."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        settings = _SETTINGS.format(port=self.port, bind=self._bind, folder=_quoted(self.folder), password=self._password)
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

    @property
    def _configuration(self) -> Path:
        return self.folder / "valkey.conf"


def _quoted(path: Path) -> str:
    """As one word of a configuration line."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'

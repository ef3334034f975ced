"""Free TCP ports, and who holds a busy one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Mapping

import psutil

# Below the range from which kernels hand out ephemeral ports, so that no outgoing connection takes a port between the
# moment it was chosen and the moment its server binds it.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on `host:port` now. TIME_WAIT leftovers do not count as busy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(preferred: int = 0, host: str = "127.0.0.1") -> int:
    """`preferred` if it is free (0: no preference), else a random free port. Raises OSError when none is found."""
    if preferred and is_free(preferred, host):
        return preferred
    for _ in range(200):
        port = random.randint(_FIRST, _LAST)  # noqa: S311 - no secret
        if is_free(port, host):
            return port
    raise OSError("no free TCP port found between 20000 and 32000")


def free_ports(preferred: Mapping[str, int], wanted: Iterable[str], host: str = "127.0.0.1") -> dict[str, int]:
    """A free port for each name, no two the same: the preferred one if it is free. Raises OSError when none is found."""
    found: dict[str, int] = {}
    for name in wanted:
        port = free_port(preferred.get(name, 0), host)
        while port in found.values():
            port = free_port(0, host)
        found[name] = port
    return found


def holder(port: int) -> str:
    """Who listens on `port`, for a message: "python3 (pid 123)", or "another process" if it cannot be seen."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return "another process"
    for connection in connections:
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                break
    return "another process"

"""Free ports for engines, on the node's address."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

LOW, HIGH = 18_000, 32_000
"""Below the range from which kernels take the ports of outgoing connections (32768 on), so that an engine that comes back
finds its port free."""


class NoPort(OSError):
    """No port could be had on this address."""


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there now. Raises OSError if the address is not this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: connections of the last one linger
        try:
            sock.bind((address, port))
        except OSError as error:
            if isinstance(error, PermissionError) or error.errno == errno.EADDRINUSE:
                return False
            raise
        return True


def choose(address: str, wanted: int, last: int, taken: Collection[int]) -> int:
    """`wanted` if not 0, else the `last` one if it is still free, else any free one that is not `taken` by another engine
    of this agent. Raises NoPort."""
    if wanted:
        if wanted in taken or not is_free(address, wanted):
            raise NoPort(f"port {wanted} on {address} is in use: free it, or let the agent choose (port 0)")
        return wanted
    if last and last not in taken and is_free(address, last):
        return last
    for _ in range(200):
        port = random.randrange(LOW, HIGH)  # noqa: S311  # chance only keeps agents of one machine apart
        if port not in taken and is_free(address, port):
            return port
    raise NoPort(f"no free port from {LOW} to {HIGH} on {address}")

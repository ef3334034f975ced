"""How fast bytes get from one node to another: one TCP stream for a moment, between two agents that were told to by signed
commands. In threads of their own, so that neither agent's work waits.

One stream of Python: a bound from below, far below what RDMA gives. It tells a wrong network from a right one.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import struct
import threading
import time
from typing import Any

from controlplane.common.places import read_place

log = logging.getLogger(__name__)

SEND_S = 1.0
WAIT_S = 10.0
"""A listener to whom nobody comes ends."""
MOST_S = 5.0
"""Of anything on an open connection."""
PART = bytes(1 << 20)
TOKEN_BYTES = 32
_RESULT = struct.Struct("!Qd")


class LinkFailed(RuntimeError):
    """It could not be measured; the message says why."""


def listen(address: str, token: str) -> int:
    """Take one measurement from whoever shows `token` (hex), on a free port of `address`, which is returned at once. Raises
    LinkFailed."""
    expected = _token(token)
    try:
        listener = socket.create_server((address, 0), family=_family(address))
    except OSError as error:
        raise LinkFailed(f"cannot listen on {address}: {error.strerror}") from error
    listener.settimeout(WAIT_S)
    port = int(listener.getsockname()[1])
    threading.Thread(target=_receive, args=(listener, expected), name="link", daemon=True).start()
    return port


def send(peer: str, token: str) -> dict[str, Any]:
    """Send to the listener at `peer` (ADDRESS:PORT) for SEND_S. Returns `gbps` as the listener counted, and `connect_ms`,
    one round trip. Raises LinkFailed."""
    shown = _token(token)
    try:
        place = read_place(peer)
        began = time.monotonic()
        with socket.create_connection((place.host, place.port), timeout=MOST_S) as connection:
            connect_s = time.monotonic() - began
            connection.sendall(shown)
            until = time.monotonic() + SEND_S
            while time.monotonic() < until:
                connection.sendall(PART)
            connection.shutdown(socket.SHUT_WR)
            size, seconds = _RESULT.unpack(_exactly(connection, _RESULT.size))
    except (OSError, ValueError, struct.error) as error:
        raise LinkFailed(f"{peer:.80} cannot be reached: {getattr(error, 'strerror', None) or error}") from error
    return {"gbps": size * 8 / max(seconds, 1e-6) / 1e9, "connect_ms": connect_s * 1000}


def _receive(listener: socket.socket, expected: bytes) -> None:
    with listener:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
    with connection, contextlib.suppress(OSError):
        connection.settimeout(MOST_S)
        if not hmac.compare_digest(_exactly(connection, TOKEN_BYTES), expected):
            log.warning("somebody without the token came to measure the link")
            return
        buffer, size, began = bytearray(len(PART)), 0, time.monotonic()
        while (count := connection.recv_into(buffer)) and time.monotonic() < began + MOST_S:
            size += count
        connection.sendall(_RESULT.pack(size, time.monotonic() - began))


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer at the end of the stream."""
    found = b""
    while len(found) < count and (part := connection.recv(count - len(found))):
        found += part
    return found


def _token(text: str) -> bytes:
    try:
        token = bytes.fromhex(text)
    except ValueError:
        token = b""
    if len(token) != TOKEN_BYTES:
        raise LinkFailed("the command has no token")
    return token


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET

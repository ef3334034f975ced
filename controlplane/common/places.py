"""Where a process listens, as a setting writes it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """`host` is an IP address without brackets."""

    host: str
    port: int


def read_place(text: str) -> Place:
    """`127.0.0.1:9100`, `[::1]:9100`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        ipaddress.ip_address(host)
        good = port.isdecimal() and 0 < int(port) < 65536
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{text!r:.80} is no place to listen: write an IP address and a port, like 127.0.0.1:9100")
    return Place(host, int(port))

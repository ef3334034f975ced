"""What is outside, as settings write it: networks that webhooks may reach, and the server that takes e-mail."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}


@dataclass(frozen=True)
class MailServer:
    """`tls`: from the start; `starttls`: after a greeting in clear."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: bool
    starttls: bool


def read_networks(text: str) -> tuple[Network, ...]:
    """`10.1.0.0/16, fd00::/8, 127.0.0.1`, separated by commas. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def read_smtp(url: str) -> MailServer:
    """smtp://, smtp+starttls:// or smtps://[user:password@]host[:port]. Raises ValueError, which shows nothing of it."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
        host = parts.hostname or ""
    except (ValueError, KeyError):
        host, port = "", 0
    if not host or parts.path not in ("", "/"):
        raise ValueError("write smtps://user:password@host:port (or smtp+starttls://, or smtp:// without encryption)")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return MailServer(host, port, user, password, parts.scheme == "smtps", parts.scheme == "smtp+starttls")

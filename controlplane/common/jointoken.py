"""What a machine is given to join with, what it is as a node once it has joined, and how it reaches the broker."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from controlplane.common.valkey import usable
from controlplane.core import names
from controlplane.core.codec import WrongShape, decode, encode


class BadToken(ValueError):
    """No token, or no address for one; the message names the remedy."""


@dataclass(frozen=True)
class JoinToken:
    """Good for one machine, once. `secret` is hex; the URLs hold no password."""

    id: int
    node: str
    secret: str = field(repr=False)
    valkey_url: str
    telemetry_url: str = ""

    def __post_init__(self) -> None:
        names.check_node_name(self.node)
        if len(bytes.fromhex(self.secret)) != 32 or not usable(self.valkey_url):
            raise ValueError("secret must be 32 bytes, and valkey_url one of a Valkey")

    def text(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(encode(self)).encode()).decode()

    def digest(self) -> str:
        """Tells whether two are the same, and nothing else."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


@dataclass(frozen=True)
class Joined:
    """What a node keeps: its key (hex), and URLs with the password of its own user. `token`: digest of the one it
    joined with; empty: one of an earlier version, which held all this itself."""

    node: str
    node_key: str = field(repr=False)
    valkey_url: str = field(repr=False)
    telemetry_url: str = field(default="", repr=False)
    token: str = ""

    def __post_init__(self) -> None:
        names.check_node_name(self.node)
        if len(bytes.fromhex(self.node_key)) != 32:
            raise ValueError("node_key must be 32 bytes")


def read_token(text: str) -> JoinToken | Joined:
    """A token as it was printed; one of an earlier version says all at once. Raises BadToken for anything else."""
    try:
        document = json.loads(base64.urlsafe_b64decode(text.strip().encode()))
        if isinstance(document, dict) and "node_key" in document:
            return decode(Joined, document)
        return decode(JoinToken, document)
    except (binascii.Error, ValueError, RecursionError, WrongShape):
        raise BadToken("this is no join token: copy the whole line that `manage.py join-token NODE` printed") from None


def join_url(url: str, address: str) -> str:
    """The URL of a Valkey without its user, as it is reached at `address` (HOST or HOST:PORT; empty: where it is). Raises
    BadToken."""
    if not address:
        return without_user(url)
    parts = urlsplit(url)
    host = f"[{address}]" if _is_ipv6(address) else address
    try:
        named = urlsplit(f"//{host}")
        good = bool(named.hostname) and named.netloc == host and not {"@", " "} & set(host) and named.port != 0
        port = named.port or parts.port
    except ValueError:
        good = False
    if not good:
        raise BadToken(f"address {address:.80} is none: write HOST or HOST:PORT, like 10.0.0.1:6379")
    bare = f"[{named.hostname}]" if ":" in (named.hostname or "") else named.hostname
    return urlunsplit(parts._replace(netloc=f"{bare}" + (f":{port}" if port else "")))


def without_user(url: str) -> str:
    """The URL of a server without name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def with_user(url: str, user: str, password: str) -> str:
    """The URL of a server as this user."""
    parts = urlsplit(without_user(url))
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc}"))


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False

"""Where a webhook may go: an address is looked up once, judged, and that very address is connected to. So neither a name
that leads inside nor one that leads elsewhere a moment later (DNS rebinding) reaches what is not public."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from controlplane.common.outward import Network, read_networks

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL = 1000
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NOT_FOR_US = read_networks("168.63.129.16/32, fec0::/10, 64:ff9b:1::/48")
"""Public as far as `ipaddress` knows, but: a cloud's own service for the machine that asks, site-local, local NAT64."""
SETTING = "TWINPOOL_WEBHOOK_NETWORKS"


class BadTarget(ValueError):
    """A URL or address that no webhook may go to. The message names the remedy and nothing of the URL's path."""


@dataclass(frozen=True)
class Target:
    """`path` with the query. `secure`: https."""

    secure: bool
    host: str
    port: int
    path: str


@dataclass(frozen=True)
class Place:
    """An address that was judged, to be connected to as it is. `inside`: only the setting allows it."""

    ip: str
    inside: bool


def parse_url(url: str) -> Target:
    """Raises BadTarget."""
    if len(url) > MAX_URL or not url.isprintable() or not url.isascii() or " " in url:
        raise BadTarget(f"a URL has at most {MAX_URL} printable ASCII characters and no spaces: correct it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadTarget("this is no URL: give one like https://hooks.example.com/path") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BadTarget("a webhook is a URL like https://hooks.example.com/path")
    if parts.username is not None or parts.password is not None:
        raise BadTarget("a URL with a user or password in it is not taken: the signature says who we are")
    if port == 0:
        raise BadTarget("port 0 is no port")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(secure, parts.hostname, port or (443 if secure else 80), path)


def is_public(address: Address) -> bool:
    """Whether anybody in the world may be meant: not private, loopback, link-local, metadata, multicast or reserved, and of
    an IPv6 address that stands for an IPv4 address neither that."""
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    if any(address in network for network in NOT_FOR_US if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def judge(found: Sequence[str], allowed: Sequence[Network], *, secure: bool) -> Place:
    """The place to connect to, of all addresses that a name has: every one must be allowed. Raises BadTarget."""
    places = [_judged(text, allowed) for text in found]
    if not places:
        raise BadTarget("its name has no address: correct it, or see whether DNS answers")
    if not secure and not all(place.inside for place in places):
        raise BadTarget(f"http is taken only for addresses that {SETTING} allows: use https")
    return places[0]


def _judged(text: str, allowed: Sequence[Network]) -> Place:
    address = ipaddress.ip_address(text.partition("%")[0])
    meant = _embedded(address) or address
    inside = any(meant in network for network in allowed if network.version == meant.version)
    if not inside and not is_public(address):
        raise BadTarget(
            f"its address {address} is not public (private, loopback, link-local, metadata or reserved): an admin may allow "
            f"its network with {SETTING}"
        )
    return Place(str(address), inside)


def resolve(target: Target, allowed: Sequence[Network]) -> Place:
    """Look the name up and judge what it leads to. Raises BadTarget."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        found = []
    return judge([str(each[4][0]) for each in found], allowed, secure=target.secure)

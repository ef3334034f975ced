"""What ids, names, addresses and keys in a routing table must look like: routers put them into headers and connect to them.

Each function returns what is wrong with a value, or "". Pure.
"""

from __future__ import annotations

import ipaddress
import re

_URL = re.compile(r"http://(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?):(?P<port>[0-9]{1,5})")
_ID = re.compile(r"[A-Za-z0-9._:/@+-]{1,200}")
_KEY = re.compile(r"[!-~]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SALT = re.compile(r"[0-9a-f]{16}")
MAX_NAME = 256


def url_problem(url: str) -> str:
    found = _URL.fullmatch(url)
    if found is None or not 1 <= int(found["port"]) <= 65535 or not _is_v6(found["v6"]):
        return f"url {url!r:.80} must be http://host:port, without user, path or query"
    return ""


def _is_v6(text: str | None) -> bool:
    try:
        return text is None or bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def id_problem(id: str) -> str:
    if _ID.fullmatch(id):
        return ""
    return f"id {id!r:.80} must be 1 to 200 letters, digits or any of . _ : / @ + -"


def name_problem(name: str) -> str:
    if 0 < len(name) <= MAX_NAME and name.isprintable():
        return ""
    return f"name {name!r:.80} must be 1 to {MAX_NAME} printable characters"


def key_problem(key: str) -> str:
    """Of an engine's key; it is never part of the message."""
    return "" if _KEY.fullmatch(key) else "engine_key must be printable ASCII without spaces"


def digest_problem(sha256: str) -> str:
    return "" if _SHA256.fullmatch(sha256) else "sha256 of a key must be 64 lower-case hexadecimal digits"


def salt_problem(salt: str) -> str:
    """Of a cache era: short, so that a client's own salt fits beside it."""
    return "" if _SALT.fullmatch(salt) else "salt of a cache era must be 16 lower-case hexadecimal digits"

"""What a client may say about its request: its id, trace and session, checked and bounded, and its API key."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from itertools import count

from controlplane.core.protocol import KeyEntry, ModelRoute, RoutingTable
from controlplane.core.routing import Reason
from controlplane.router.errors import ApiError

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")
_SESSION = re.compile(rb"[\x21-\x7e]{1,256}")

_BOOT = secrets.token_hex(6).encode()
_NUMBERS = count(1)


def request_id(headers: Mapping[bytes, bytes], in_use: set[bytes]) -> bytes:
    """The client's x-request-id if it is well-formed and not in use now (engines take it for a key), else a new one."""
    wanted = headers.get(b"x-request-id", b"")
    if wanted and wanted not in in_use and _REQUEST_ID.fullmatch(wanted):
        return wanted
    return b"%b-%x" % (_BOOT, next(_NUMBERS))


def session(headers: Mapping[bytes, bytes]) -> bytes | None:
    value = headers.get(b"x-session-id")
    return value if value is not None and _SESSION.fullmatch(value) else None


def traceparent(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's W3C trace context if it is well-formed, else nothing."""
    value = headers.get(b"traceparent")
    return value if value is not None and _TRACEPARENT.fullmatch(value) else b""


def forwarded(headers: Mapping[bytes, bytes], id: bytes) -> bytes:
    """The header lines that engines get besides the router's own. A closed list: nothing else of a client's passes."""
    lines = b"x-request-id: %b\r\n" % id
    parent = traceparent(headers)
    if parent:
        lines += b"traceparent: %b\r\n" % parent
        state = headers.get(b"tracestate")
        if state is not None and _TRACESTATE.fullmatch(state):
            lines += b"tracestate: %b\r\n" % state
    name = session(headers)
    if name is not None:
        lines += b"x-session-id: %b\r\n" % name
    return lines


def is_loopback(address: str) -> bool:
    """Of a peer's address as sockets give it, also of IPv4 on an IPv6 socket."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


@lru_cache(maxsize=1024)
def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


@lru_cache(maxsize=1024)
def _bearers(authorization: bytes) -> str:
    """The digest of its key; "" if the header is of another kind."""
    scheme, _, value = authorization.partition(b" ")
    return hashlib.sha256(value.strip()).hexdigest() if scheme.lower() == b"bearer" else ""


def authenticate(table: RoutingTable, headers: Mapping[bytes, bytes], local: bool) -> KeyEntry | None:
    """The entry of the client's key; None if it needs none: the table does not want one and the client is on this machine
    (`local`). Raises ApiError 401."""
    if local and not table.require_key:
        return None
    digest = _bearers(headers.get(b"authorization", b"")) or _digest(headers.get(b"x-api-key", b""))
    entry = table.key_of.get(digest)
    if entry is not None:
        return entry
    message = "A valid API key is needed: Authorization: Bearer <key>. The operator makes keys with `manage.py add_key`."
    if not table.require_key:
        message += " Without one this router serves its own machine only."
    raise ApiError(401, message, Reason.UNAUTHORIZED, code="invalid_api_key")


def covers(key: KeyEntry | None, route: ModelRoute, name: str) -> bool:
    """Whether the key may use what the model serves as `name`. A key that names the model, perhaps by an alias, covers its
    adapters too; one that names an adapter covers that one."""
    if key is None or "*" in key.models or not {route.name, *route.aliases}.isdisjoint(key.models):
        return True
    return name in key.models


def authorize(key: KeyEntry | None, route: ModelRoute, name: str) -> None:
    """Raises ApiError 403 if the key does not cover what the model serves as `name`."""
    if not covers(key, route, name):
        message = f"This API key does not cover the model {route.served_as(name)!r}."
        raise ApiError(403, message, Reason.FORBIDDEN, code="model_forbidden", param="model")

"""What must be known of a request to the API before Django sees it: its whole body, bounded, and which slashes are data."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from controlplane.api.parsing import MAX_BYTES, TooLarge
from controlplane.api.problems import MEDIA_TYPE, document
from controlplane.api.rendering import encode

PREFIX = "/api/"
SLASH = "~"
"""Stands for a slash inside a name (`org/model`): in no name, and untouched by proxies that decode addresses."""

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Gate:
    """ASGI: answers 413 to a body over MAX_BYTES without keeping it, and gives Django one with a length, also if it came in
    chunks. `%2F` in the address becomes SLASH: after the server has decoded it nobody can tell it from a divider."""

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        body = await _whole(scope, receive)
        if body is None:
            return
        if len(body) > MAX_BYTES:
            await _refuse(send)
            return
        await self._app(_known(scope, len(body)), _replay(body, receive), send)


async def _whole(scope: Any, receive: Receive) -> bytes | None:
    """The body, or its first bytes if it is too large; None if the client has gone."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > MAX_BYTES:
            return bytes(MAX_BYTES + 1)
    body = bytearray()
    while len(body) <= MAX_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


def _known(scope: Any, length: int) -> dict[str, Any]:
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    if length:
        headers.append((b"content-length", str(length).encode()))
    known = {**scope, "headers": headers}
    raw = scope.get("raw_path")
    if raw and b"%2f" in raw.lower():
        path = re.sub(rb"%2f", SLASH.encode(), raw.partition(b"?")[0], flags=re.IGNORECASE)
        known["path"] = unquote_to_bytes(path).decode("utf-8", "replace")
    return known


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send) -> None:
    body = encode(document(413, "too_large", [TooLarge.default_detail]))
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})

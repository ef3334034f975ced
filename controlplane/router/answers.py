"""Builds the heads of answers, and the route header that every one of them carries; judges and reshapes engines' bodies."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import orjson

from controlplane.core.routing import Path, Reason
from controlplane.router import sse
from controlplane.router.errors import STATUS_TEXT, ApiError

JSON = b"application/json"


@lru_cache(maxsize=4096)
def route(path: Path, reason: Reason, prefill: str = "", decode: str = "") -> bytes:
    """The value of x-twinpool-route: `<path>; prefill=<id>; decode=<id>; reason=<code>`, `-` where there is no engine."""
    return f"{path}; prefill={prefill or '-'}; decode={decode or '-'}; reason={reason}".encode()


_date = (0, b"")


def _http_date() -> bytes:
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now)).encode())
    return _date[1]


def head(
    status: int,
    request_id: bytes,
    route_value: bytes,
    content_type: bytes,
    length: int | None,
    close: bool,
    extra: bytes = b"",
    http10: bool = False,
) -> bytes:
    """Status line and headers. `length` None: chunked, or (HTTP/1.0) until the connection closes. `extra`: header lines."""
    size = b"" if http10 else b"transfer-encoding: chunked\r\n"
    if length is not None:
        size = b"content-length: %d\r\n" % length
    return (b"HTTP/1.1 %d %b\r\ndate: %b\r\ncontent-type: %b\r\n%bx-request-id: %b\r\nx-twinpool-route: %b\r\n%b%b\r\n") % (
        status,
        STATUS_TEXT.get(status, b"Unknown"),
        _http_date(),
        content_type,
        size,
        request_id,
        route_value,
        extra,
        b"connection: close\r\n" if close else b"",
    )


def sound(body: bytes) -> dict[str, Any] | None:
    """A whole answer with status 200 to a generation, read; None if it is not all there or a failure in disguise."""
    document = _object(body)
    return None if document is None or sse.gave_up(document) else document


def refusal(status: int, body: bytes) -> bytes:
    """An engine's 4xx as the client sees it: OpenAI-shaped ones as they are, FastAPI's with their text, nothing else."""
    document = _object(body) or {}
    error = document.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return body
    said = document.get("detail", document.get("message", error))
    message = said if isinstance(said, str) else "The engine refused this request."
    return ApiError(status, message, Reason.BAD_REQUEST).document()


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None

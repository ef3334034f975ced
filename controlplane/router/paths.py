"""The closed list of paths, and the one spelling under which a path is looked up."""

from __future__ import annotations

import posixpath
from typing import Literal
from urllib.parse import unquote_to_bytes

Endpoint = Literal["generate", "whole", "models", "live", "ready", "metrics"]

ENDPOINTS: dict[str, tuple[str, Endpoint]] = {
    "/v1/chat/completions": ("POST", "generate"),
    "/v1/completions": ("POST", "generate"),
    "/v1/embeddings": ("POST", "whole"),
    "/v1/responses": ("POST", "whole"),
    "/v1/messages": ("POST", "whole"),
    "/v1/score": ("POST", "whole"),
    "/v1/rerank": ("POST", "whole"),
    "/v1/models": ("GET", "models"),
    "/livez": ("GET", "live"),
    "/readyz": ("GET", "ready"),
    "/health": ("GET", "ready"),
    "/metrics": ("GET", "metrics"),
}

_EXACT = {path.encode(): path for path in ENDPOINTS}


def normalise(target: bytes) -> str | None:
    """The canonical path of a request target (origin or absolute form), or None if it is not on the list.

    Percent-encoding is resolved once, then empty and dot segments and a trailing slash. Engines are only ever sent the
    canonical spelling, so no spelling can reach another of their paths.
    """
    path = target.partition(b"?")[0]
    known = _EXACT.get(path)
    if known is not None:
        return known
    for scheme in (b"http://", b"https://"):
        if path[: len(scheme)].lower() == scheme:
            path = b"/" + path[len(scheme) :].partition(b"/")[2]
    path = unquote_to_bytes(path)
    if not path.startswith(b"/") or len(path) > 1024 or b"\0" in path:
        return None
    return _EXACT.get(posixpath.normpath(b"/" + path.lstrip(b"/")))


def query_value(target: bytes, name: str) -> str | None:
    """The first value of a query parameter, decoded; None without it."""
    for pair in target.partition(b"?")[2].split(b"&"):
        key, _, value = pair.partition(b"=")
        if key == name.encode():
            return unquote_to_bytes(value.replace(b"+", b" ")).decode("utf-8", "replace")
    return None

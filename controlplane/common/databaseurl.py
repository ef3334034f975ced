"""URLs of PostgreSQL."""

from __future__ import annotations

from urllib.parse import urlsplit

HOW = "write it like postgresql://user:password@host:5432/name"


def usable(url: str) -> bool:
    """Whether this can be the URL of a PostgreSQL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("postgresql", "postgres") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False

"""What a token of the REST API may be used for, whatever more its user may. Reads nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

READ: Final = "read"
WRITE: Final = "write"
SECRETS: Final = "secrets"
SCOPES: Final = (READ, WRITE, SECRETS)
"""read: look at everything its user may see; write: change what its user may change; secrets: make, rotate and revoke
inference keys and tokens. None holds another."""


def all_scopes() -> list[str]:
    """Of tokens that were made before there were scopes."""
    return list(SCOPES)


def problems(scopes: Collection[str]) -> Iterator[str]:
    """Why these can be no token's."""
    if not scopes:
        yield f"scopes: at least one of {', '.join(SCOPES)}"
    for unknown in sorted(set(scopes) - set(SCOPES)):
        yield f"there is no scope {unknown!r:.40}; scopes: {', '.join(SCOPES)}"

"""The one exception by which an action says no."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal["invalid", "not_found", "busy", "stale", "forbidden", "no_capacity", "frozen", "unsafe"]
"""stale: the model changed since it was read; forbidden: the actor's role does not allow it; frozen: somebody forbade
changes for a time; unsafe: too few engines would be left to serve."""
STATUS_OF_KIND: Mapping[Kind, int] = {
    "invalid": 422,
    "unsafe": 422,
    "not_found": 404,
    "forbidden": 403,
    "stale": 412,
    "busy": 409,
    "frozen": 409,
    "no_capacity": 409,
}
"""With which HTTP status pages and the API answer a refusal."""


class Refused(Exception):
    """An action was refused and changed nothing. `reasons` are for the operator: what is wrong and what would do.
    `operation`: the one that is in the way, of kind busy."""

    def __init__(self, kind: Kind, *reasons: str, operation: int | None = None) -> None:
        super().__init__("; ".join(reasons))
        self.kind: Kind = kind
        self.reasons = reasons
        self.operation = operation


class Told:
    """How many refusals pages and the API of this process have told, by kind. For any thread."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter(dict.fromkeys(STATUS_OF_KIND, 0))
        self._lock = threading.Lock()

    def note(self, refused: Refused) -> None:
        with self._lock:
            self.counts[refused.kind] += 1


told = Told()


def refuse_all(kind: Kind, reasons: Iterable[str]) -> None:
    """Raise Refused if there is any reason."""
    found = tuple(reasons)
    if found:
        raise Refused(kind, *found)

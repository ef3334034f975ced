"""The one exception by which an action says no."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Code = Literal["invalid", "not_found", "busy", "no_capacity"]


class Refused(Exception):
    """An action was refused and changed nothing. `reasons` are for the operator: what is wrong and what would do."""

    def __init__(self, code: Code, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.code: Code = code
        self.reasons = reasons


def refuse_all(code: Code, reasons: Iterable[str]) -> None:
    """Raise Refused if there is any reason."""
    found = tuple(reasons)
    if found:
        raise Refused(code, *found)

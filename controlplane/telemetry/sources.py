"""What apps above telemetry tell in live topics. They register at their start how it is read: telemetry imports none."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.telemetry.rows import ProposalRow

Proposals = Callable[[], tuple[ProposalRow, ...]]
_read: list[Proposals] = []


def tell_proposals(read: Proposals) -> None:
    """From now on `read` is asked with every read of the fleet: one query. It may raise django.db.Error."""
    _read[:] = [read]


def proposals() -> tuple[ProposalRow, ...]:
    """Those that are open or new, the newest first; none where nobody told how to read them."""
    return _read[0]() if _read else ()

"""How much of the telemetry stream its senders leave standing: the last ten minutes, however large the fleet is.

A fixed number of entries is hours of a small fleet and seconds of a large one. So a sender cuts by time, on the server's
own clock: the ids of its last entries are that clock, and it needs no clock of its own, which may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.core import names


class StreamEnd:
    """What one sender knows of the stream from the answers it got."""

    def __init__(self) -> None:
        self._cut_before_ms: int | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of the next `xadd`: what to drop, if anything. Fewer than TELEMETRY_AT_LEAST entries are never cut."""
        if self._cut_before_ms is None:
            return {}
        return {"minid": f"{self._cut_before_ms}-0", "approximate": True}

    def note(self, answers: Sequence[Any]) -> None:
        """`answers`: ids of entries just added, then the length of the stream."""
        *ids, length = answers
        newest_ms = int(bytes(ids[-1]).partition(b"-")[0])
        enough = int(length) > names.TELEMETRY_AT_LEAST
        self._cut_before_ms = newest_ms - names.TELEMETRY_KEPT_S * 1000 if enough else None

"""Which requests are told of."""

from __future__ import annotations

import math

from controlplane.core.protocol import MAX_WEIGHT


class Sampler:
    """How many requests the next row stands for, so that about `rows_per_s` rows are told of requests that went well."""

    def __init__(self, rows_per_s: float) -> None:
        self._rows_per_s = rows_per_s
        self._every = 1
        self._seen = 0
        self._seen_before = 0

    def weight(self, must: bool) -> int:
        """0: this one is not told. `must`: it is, and stands for itself."""
        if must:
            return 1
        self._seen += 1
        return self._every if self._seen % self._every == 0 else 0

    def sweep(self, passed_s: float) -> None:
        """Called about twice a second."""
        rate = (self._seen - self._seen_before) / passed_s
        self._seen_before = self._seen
        self._every = min(MAX_WEIGHT, max(1, math.ceil(rate / self._rows_per_s)))

"""Counters, gauges and histograms in Prometheus' text format: only what an engine needs, cheap to count and to print."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def labelled(labels: Mapping[str, str]) -> str:
    """`{a="x",b="y"}` in order of name, or nothing without labels."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


class Counter:
    """One sample of a counter. Add to `value`."""

    __slots__ = ("_line", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._line = f"{name}{labelled(labels)} "
        self.value = 0.0

    def text(self) -> str:
        return f"{self._line}{self.value}\n"


class Histogram:
    """Cumulative buckets, sum and count of one labelled histogram."""

    __slots__ = ("_bounds", "_counts", "_lines", "_shown", "_shown_count", "_tail", "count", "sum")

    def __init__(self, name: str, labels: Mapping[str, str], bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._lines = [f"{name}_bucket{labelled({**labels, 'le': bound})} " for bound in (*map(_bound, bounds), "+Inf")]
        self._tail = f"{name}_count{labelled(labels)} ", f"{name}_sum{labelled(labels)} "
        self.sum = 0.0
        self.count = 0
        self._shown, self._shown_count = "", -1

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def text(self) -> str:
        """Its lines; made anew only if something was observed since they were made last."""
        if self._shown_count != self.count:
            self._shown, self._shown_count = self._text(), self.count
        return self._shown

    def _text(self) -> str:
        total, lines = 0, []
        for line, count in zip(self._lines, self._counts, strict=True):
            total += count
            lines.append(f"{line}{float(total)}\n")
        count_line, sum_line = self._tail
        return f"{''.join(lines)}{count_line}{float(self.count)}\n{sum_line}{self.sum}\n"


def _bound(bound: float) -> str:
    """As the reference client prints it: 1e6 and more with an exponent."""
    if bound < 1e6:
        return repr(float(bound))
    digits = f"{int(bound)}"
    return f"{digits[0]}.{digits[1:].rstrip('0') or '0'}e+{len(digits) - 1:02d}"

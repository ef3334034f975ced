"""Rows of `reading` into figures and series. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from controlplane.telemetry.merging import Merged, mean_of
from controlplane.telemetry.queries import figures
from controlplane.telemetry.queries.figures import Figure, Latency, LatencyHeat, LatencySeries, Series
from controlplane.telemetry.queries.reading import Row
from controlplane.telemetry.queries.windows import Cells, Level, Window

Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Shape:
    """Makes the figures of one thing from its row (None: nothing was recorded) of a window."""

    window: Window
    row: Row | None
    grain: Level = Level.MINUTE

    @property
    def at(self) -> float | None:
        return self.row["ends"] if self.row else None

    def figure(self, value: Value | str, unit: str, count: Value | str = "covered_s") -> Figure:
        """`value` and `count`: the name of what was picked, or how it is made."""
        known, samples = self._of(value), self._of(count)
        stale = self.window.is_stale(self.at, self.grain)
        return Figure(known, unit, self.window.span_s, samples or 0.0, self.at, stale)

    def per_s(self, name: str, unit: str, count: Value | str = "covered_s") -> Figure:
        """What was counted, by the seconds that it was counted in."""
        return self.figure(lambda row: figures.ratio(row[name], row["told_s"]), unit, count)

    def latency(self, name: str) -> Latency:
        """Of what `reading.latency` picked."""
        merged = Merged.of(1, [(0, self.row[name] or b"")] if self.row else [])
        count = float(merged.totals[0])

        def one(value: float | None) -> Figure:
            return self.figure(lambda _: value, figures.MS, lambda _: count)

        p50, p90, p99 = (one(merged.quantiles(q)[0]) for q in (0.5, 0.9, 0.99))
        return Latency(p50, p90, p99, one(mean_of(self.row[f"{name}_sums"] or b"") if self.row else None))

    def _of(self, value: Value | str) -> float | None:
        if self.row is None:
            return None
        found = self.row[value] if isinstance(value, str) else value(self.row)
        return None if found is None else float(found)


@dataclass(frozen=True)
class Course:
    """Makes the series of one thing from its rows, at most one per cell; a cell without a row is a gap."""

    cells: Cells
    rows: Sequence[Row]
    _by_cell: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_cell.update((row["cell"], row) for row in self.rows)

    def series(self, value: Value | str, unit: str) -> Series:
        values: list[float | None] = [None] * len(self.cells.starts)
        for cell, row in self._by_cell.items():
            values[cell] = row[value] if isinstance(value, str) else value(row)
        return Series(self.cells.starts, self.cells.step_s, values, unit)

    def per_s(self, name: str, unit: str) -> Series:
        return self.series(lambda row: figures.ratio(row[name], row["told_s"]), unit)

    def latency(self, name: str) -> LatencySeries:
        merged = self._merged(name)

        def one(values: list[float | None], unit: str) -> Series:
            return Series(self.cells.starts, self.cells.step_s, values, unit)

        counts = [float(total) if cell in self._by_cell else None for cell, total in enumerate(merged.totals)]
        p50, p99 = merged.quantiles(0.5), merged.quantiles(0.99)
        return LatencySeries(one(p50, figures.MS), one(p99, figures.MS), one(counts, figures.COUNT))

    def heat(self, name: str, edges_ms: list[float]) -> LatencyHeat:
        counts = self._merged(name).histograms(edges_ms)
        known = [count if cell in self._by_cell else None for cell, count in enumerate(counts)]
        return LatencyHeat(self.cells.starts, self.cells.step_s, edges_ms, known)

    def _merged(self, name: str) -> Merged:
        return Merged.of(len(self.cells.starts), ((cell, row[name] or b"") for cell, row in self._by_cell.items()))


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by what these columns say, in the order in which they come."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def together(rows: Iterable[Row], totals: Sequence[str], sketches: Sequence[str]) -> list[Row]:
    """Rows of several groups as one per cell: totals and sketches added up; covered is what the best covered group has."""
    found: dict[int, Row] = {}
    for row in rows:
        into = found.get(row["cell"])
        if into is None:
            found[row["cell"]] = dict(row)
            continue
        for name in totals:
            into[name] = figures.summed((into[name], row[name]))
        for name in sketches:
            into[name] = (into[name] or b"") + (row[name] or b"")
        for name in ("covered_s", "told_s", "ends"):
            into[name] = max(into[name], row[name])
    return [found[cell] for cell in sorted(found)]

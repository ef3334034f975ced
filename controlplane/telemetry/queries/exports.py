"""Tables and charts as CSV and JSON: every column with its unit, times in UTC, what is not known left empty. Pure."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from controlplane.telemetry.queries.figures import Figure, LatencyHeat, LatencySeries, Series

Cell = str | int | float | bool | None
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A text that begins so (also as wide signs of East Asian keyboards) is a formula to a spreadsheet: it is written with an
apostrophe before it."""
UNITS = {"bytes": "B", "ms": "ms", "w": "W"}
"""Of plain numbers, by the last word of their names."""


@dataclass(frozen=True)
class Table:
    """`units[i]`: of column i; empty: it has none."""

    columns: list[str]
    units: list[str]
    rows: list[list[Cell]]


def figures_table(items: Sequence[Any]) -> Table:
    """Dataclasses of one class: texts and numbers as they are, each Figure as its value, of what is nested (percentiles, …)
    one column each (`ttft_p99`). Lists are left out."""
    flat = [list(_flat("", item)) for item in items]
    if not flat:
        return Table([], [], [])
    return Table(
        [name for name, _, _ in flat[0]], [unit for _, unit, _ in flat[0]], [[v for _, _, v in row] for row in flat]
    )


def _flat(name: str, value: Any) -> Iterator[tuple[str, str, Cell]]:
    if isinstance(value, Figure):
        yield name, value.unit, value.value
    elif name == "at" or name.endswith("_at"):
        yield name, "UTC", utc_or_none(value)
    elif value is None or isinstance(value, (str, int, float, bool)):
        yield name, UNITS.get(name.rpartition("_")[2], ""), value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _flat(f"{name}_{field.name}" if name else field.name, getattr(value, field.name))


def series_table(named: Mapping[str, Series | LatencySeries]) -> Table:
    """A row per time at which a cell of any series begins; a series with wider cells has values only where its own begin."""
    flat = flat_series(named)
    starts = sorted({start for series in flat.values() for start in series.starts})
    known = [dict(zip(series.starts, series.values, strict=True)) for series in flat.values()]
    rows: list[list[Cell]] = [[utc(start), *(values.get(start) for values in known)] for start in starts]
    return Table(["time", *flat], ["UTC", *(series.unit for series in flat.values())], rows)


def flat_series(named: Mapping[str, Series | LatencySeries]) -> dict[str, Series]:
    """A latency is three series: `ttft_p50`, `ttft_p99` and `ttft_count`."""
    flat: dict[str, Series] = {}
    for name, series in named.items():
        if isinstance(series, LatencySeries):
            flat |= {f"{name}_p50": series.p50, f"{name}_p99": series.p99, f"{name}_count": series.count}
        else:
            flat[name] = series
    return flat


def heat_table(heat: LatencyHeat) -> Table:
    """A row per cell of time, a column per bucket: from one edge to the next; a gap is empty."""
    buckets = [f"{low:.3g}-{high:.3g} ms" for low, high in pairwise(heat.edges_ms)]
    nothing: list[Cell] = [None] * len(buckets)
    rows = [[utc(start), *(counts or nothing)] for start, counts in zip(heat.starts, heat.counts, strict=True)]
    return Table(["time", *buckets], ["UTC", *("1" for _ in buckets)], rows)


def all_series(item: Any) -> dict[str, Series | LatencySeries]:
    """The series of a dataclass by the names of its fields."""
    found = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return {name: value for name, value in found.items() if isinstance(value, (Series, LatencySeries))}


def csv_lines(table: Table) -> Iterator[str]:
    """Lines with their ends (RFC 4180). The head names each column with its unit: `ttft_p99 (ms)`."""
    heads = (f"{name} ({unit})" if unit else name for name, unit in zip(table.columns, table.units, strict=True))
    yield _line([_safe(head) for head in heads])
    for row in table.rows:
        yield _line([_safe(cell) for cell in row])


def csv_file(table: Table) -> str:
    """The whole file. One with other letters than ASCII begins with a mark by which spreadsheets know it as UTF-8."""
    text = "".join(csv_lines(table))
    return text if text.isascii() else f"\ufeff{text}"


def json_document(table: Table) -> dict[str, Any]:
    """For `json.dumps`."""
    columns = [{"name": name, "unit": unit or None} for name, unit in zip(table.columns, table.units, strict=True)]
    return {"columns": columns, "rows": table.rows}


def utc(at: float) -> str:
    """ISO 8601, to the millisecond where there is a part of a second."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")


def utc_or_none(at: float | None) -> str | None:
    return None if at is None else utc(at)


def _line(cells: Iterable[Cell]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _safe(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.startswith(FORMULA):
        return f"'{cell}"
    return repr(cell) if isinstance(cell, float) else cell

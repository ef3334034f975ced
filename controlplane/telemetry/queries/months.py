"""Months and days of a time zone, in whole hours. Pure, but for the system's table of zones.

An hour (UTC) belongs to the day and month in which it begins there: months follow one another without gap or overlap in
every zone, also where clocks are half an hour apart from UTC, and have an hour more or less where clocks are changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from controlplane.telemetry.queries.windows import BadWindow

HOUR_S = 3600
FIRST_YEAR, LAST_YEAR = 2020, 2100
MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")


@dataclass(frozen=True)
class Month:
    """`name` is 2026-11; times are Unix seconds: its hours are from `since` up to (not with) `until`."""

    name: str
    zone: str
    since: int
    until: int
    days: tuple[tuple[str, int], ...]
    """Date (ISO 8601) and beginning of each day."""

    def cuts(self, others: Sequence[float]) -> list[tuple[str, int]]:
        """Its days cut at `others` too (whole hours): date and beginning of each piece."""
        starts = {*(start for _, start in self.days), *(int(at) for at in others if self.since < at < self.until)}
        pieces: list[tuple[str, int]] = []
        days, day = {start: name for name, start in self.days}, ""
        for start in sorted(starts):
            day = days.get(start, day)
            pieces.append((day, start))
        return pieces


def month_of(name: str, zone: str, now: float) -> Month:
    """`name` empty: the present month. Raises BadWindow for no month, no zone, or a month that has not begun."""
    place = _zone(zone)
    if not name:
        name = datetime.fromtimestamp(now, place).strftime("%Y-%m")
    found = MONTH.fullmatch(name)
    year, number = (int(part) for part in found.groups()) if found else (0, 0)
    if not (FIRST_YEAR <= year <= LAST_YEAR and 1 <= number <= 12):
        raise BadWindow(f"a month is written like 2026-11, from {FIRST_YEAR} to {LAST_YEAR}")
    days: list[tuple[str, int]] = []
    day = datetime(year, number, 1)
    while day.month == number:
        days.append((day.date().isoformat(), _first_hour(day, place)))
        day += timedelta(days=1)
    if days[0][1] > now:
        raise BadWindow(f"{name} has not begun in {zone}")
    return Month(name, zone, days[0][1], _first_hour(day, place), tuple(days))


def _first_hour(day: datetime, place: ZoneInfo) -> int:
    return math.ceil(day.replace(tzinfo=place).timestamp() / HOUR_S) * HOUR_S


def _zone(name: str) -> ZoneInfo:
    try:
        if not ZONE.fullmatch(name):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadWindow(f"{name!r:.70} is no time zone such as Europe/Berlin or UTC") from error

"""The price book: what GPU-hours cost, and from when on. Reads only."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from controlplane.core.cost import Price, PriceBook, Terms
from controlplane.core.gpus import GPUS
from controlplane.fleet.models import Gpu, GpuPrice


@dataclass(frozen=True)
class PriceRow:
    """`number` is what removes it. `per_hour`: US dollars, as it was written. `valid_from` None: the list price of a kind
    that has no other, a guess."""

    number: int | None
    kind: str
    per_hour: str
    terms: str
    valid_from: datetime | None
    valid_until: datetime | None
    """When the next price of the kind begins."""
    guess: bool
    gpus: int
    """Of this kind, that the fleet has now."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "number": self.number,
            "kind": self.kind,
            "per_hour": self.per_hour,
            "terms": self.terms,
            "valid_from": _utc(self.valid_from),
            "valid_until": _utc(self.valid_until),
            "guess": self.guess,
            "gpus": self.gpus,
        }


def prices() -> list[PriceRow]:
    """Every price, by kind and the newest first, and the list prices of kinds that the fleet has and nobody gave a price.
    Raises django.db.Error."""
    counts: dict[str, int] = {}
    for kind in Gpu.objects.values_list("kind", flat=True):
        counts[kind] = counts.get(kind, 0) + 1
    rows: list[PriceRow] = []
    until: dict[str, datetime] = {}
    for each in GpuPrice.objects.order_by("kind", "-valid_from"):
        amount, count = f"{each.per_hour.normalize():f}", counts.get(each.kind, 0)
        rows.append(PriceRow(each.pk, each.kind, amount, each.terms, each.valid_from, until.get(each.kind), False, count))
        until[each.kind] = each.valid_from
    unset = sorted(kind for kind in counts if kind not in until and kind in GPUS)
    return rows + [
        PriceRow(None, kind, f"{GPUS[kind].price_per_hour:g}", "hourly", None, None, True, counts[kind]) for kind in unset
    ]


@dataclass(frozen=True)
class Books:
    """The price book over time. `starts[i]`: from when `books[i + 1]` holds (Unix seconds); before the first: `books[0]`."""

    starts: tuple[float, ...]
    books: tuple[PriceBook, ...]

    def number_at(self, at: float) -> int:
        """Which of `books` holds at this moment."""
        return bisect_right(self.starts, at)

    def at(self, moment: float) -> PriceBook:
        return self.books[self.number_at(moment)]


def books() -> Books:
    """Raises django.db.Error."""
    starts: list[float] = []
    found: list[PriceBook] = [PriceBook()]
    known: dict[str, Price] = {}
    for each in GpuPrice.objects.order_by("valid_from", "kind"):
        at = each.valid_from.timestamp()
        known = known | {each.kind: Price(float(each.per_hour), cast(Terms, each.terms))}
        if starts and starts[-1] == at:
            found[-1] = PriceBook(known)
        else:
            starts.append(at)
            found.append(PriceBook(known))
    return Books(tuple(starts), tuple(found))


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

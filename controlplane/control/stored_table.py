"""The row of the newest routing table. A table of thousands of engines is read again only when it has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.utils import timezone

from controlplane.core.codec import WrongShape, decode
from controlplane.core.protocol import RoutingTable
from controlplane.fleet import models

Stamp = tuple[int, int]


@dataclass(frozen=True)
class StoredTable:
    stamp: Stamp = (0, 0)
    document: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def table(self) -> RoutingTable | None:
        """As the value it was made from: PostgreSQL gives back large floats as integers, which would make every tick's
        table look new. None if it is none."""
        try:
            return decode(RoutingTable, self.document)
        except WrongShape:
            return None

    @cached_property
    def serving(self) -> frozenset[str]:
        """Ids of the engines that it offers for new work."""
        return frozenset(engine["id"] for engine in self._engines if engine["state"] == "ready")

    @cached_property
    def roles(self) -> dict[str, str]:
        """Engine id -> role."""
        return {engine["id"]: engine["role"] for engine in self._engines}

    @cached_property
    def modes(self) -> dict[str, str]:
        """Model -> mode."""
        return {model["name"]: model["mode"] for model in self.document.get("models", ())}

    @property
    def _engines(self) -> list[dict[str, Any]]:
        return [engine for model in self.document.get("models", ()) for engine in model["engines"]]


_newest: tuple[tuple[Any, ...], StoredTable] = ((), StoredTable())


def read_table() -> StoredTable:
    """The newest table; an empty one at (0, 0) before there is any. Raises database errors."""
    global _newest
    rows = models.TableState.objects.filter(id=1)
    number = rows.values_list("epoch", "generation", "published_at").first()
    if number is None:
        return StoredTable()
    if _newest[0] != number:
        row = rows.get()
        _newest = (_number(row), StoredTable((row.epoch, row.generation), row.document or {}))
    return _newest[1]


def _number(row: models.TableState) -> tuple[int, int, datetime | None]:
    """What no two tables share, be they of different databases."""
    return (row.epoch, row.generation, row.published_at)


def write_table(old: Stamp, new: Stamp, document: dict[str, Any]) -> bool:
    """The next table in place of the one at `old`; False if another worker was faster."""
    global _newest
    now = timezone.now()
    models.TableState.objects.get_or_create(id=1)
    mine = models.TableState.objects.filter(id=1, epoch=old[0], generation=old[1])
    if not mine.update(epoch=new[0], generation=new[1], document=document, published_at=now):
        return False
    _newest = ((*new, now), StoredTable(new, document))
    return True

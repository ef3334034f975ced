"""What a document that says how things shall be changes, given how they are and what was applied last. Pure.

A document is items by section and name, each a set of fields by their dotted path, or None: there shall be no such item.
What it does not name is not its business. For each field, with `last` the value that was applied last:

    now == wanted                      nothing
    last missing                       wanted is written
    now == last                        wanted is written
    otherwise                          somebody changed it by hand: drift, left alone unless it is taken

An item that was applied and is gone, or that was removed and is there again, is drift as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Fields = Mapping[str, Any]
Items = Mapping[str, Fields | None]
Document = Mapping[str, Items]
"""Items by section."""
_MISSING: Any = object()


@dataclass(frozen=True)
class Edit:
    """`fields`: (value now, value wanted) by path; of an item that is made, now is None; of one that is removed none."""

    section: str
    name: str
    verb: Literal["create", "change", "remove"]
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return path_of(self.section, self.name)


@dataclass(frozen=True)
class Drift:
    """Changed by hand since it was applied. `field` "": the whole item, whose values say whether it is there."""

    section: str
    name: str
    field: str
    applied: Any
    now: Any
    wanted: Any

    @property
    def path(self) -> str:
        return path_of(self.section, self.name, self.field)


@dataclass(frozen=True)
class Decision:
    """`base`: what counts as applied once the edits are made."""

    edits: tuple[Edit, ...]
    drifts: tuple[Drift, ...]
    base: dict[str, dict[str, dict[str, Any] | None]]


def path_of(section: str, name: str, inner: str = "") -> str:
    """How an item or field is called to people: models[llama-70b].slo.ttft_ms"""
    return f"{section}[{name}].{inner}" if inner else f"{section}[{name}]"


def covers(taken: str, path: str) -> bool:
    """Whether a path that somebody names is this one or something around it."""
    return path == taken or path.startswith((f"{taken}.", f"{taken}["))


def decide(wanted: Document, now: Document, last: Document, take: Callable[[str], bool]) -> Decision:
    """`take`: whether what was changed by hand at this path is to be overwritten."""
    edits: list[Edit] = []
    drifts: list[Drift] = []
    base: dict[str, dict[str, dict[str, Any] | None]] = {}
    for section, items in wanted.items():
        there, applied = now.get(section, {}), last.get(section, {})
        for name, fields in items.items():
            item = _Item(section, name, fields, there.get(name), applied.get(name, _MISSING), take)
            edits += item.edits()
            drifts += item.drifts
            base.setdefault(section, {})[name] = item.base()
    return Decision(tuple(edits), tuple(drifts), base)


class _Item:
    """One item of the document."""

    def __init__(
        self, section: str, name: str, wanted: Fields | None, now: Fields | None, last: Any, take: Callable[[str], bool]
    ) -> None:
        self.section, self.name, self.wanted, self.now, self.last, self.take = section, name, wanted, now, last, take
        self.drifts: list[Drift] = []

    def edits(self) -> Iterator[Edit]:
        """Fills `drifts` too."""
        if self.wanted is None:
            if self.now is not None and not self._held(self.last is None, False, True, False):
                yield Edit(self.section, self.name, "remove")
        elif self.now is None:
            if not self._held(isinstance(self.last, Mapping), True, False, True):
                fields = {path: (None, value) for path, value in self.wanted.items()}
                yield Edit(self.section, self.name, "create", fields)
        elif fields := dict(self._changed(self.wanted, self.now)):
            yield Edit(self.section, self.name, "change", fields)

    def _held(self, by_hand: bool, applied: bool, now: bool, wanted: bool) -> bool:
        """Whether the item as a whole is left as somebody made it by hand."""
        if not by_hand or self.take(path_of(self.section, self.name)):
            return False
        self.drifts.append(Drift(self.section, self.name, "", applied, now, wanted))
        return True

    def _changed(self, wanted: Fields, now: Fields) -> Iterator[tuple[str, tuple[Any, Any]]]:
        last: Fields = self.last if isinstance(self.last, Mapping) else {}
        for path, value in wanted.items():
            present, applied = now.get(path), last.get(path, _MISSING)
            if path in now and present == value:
                continue
            by_hand = applied is not _MISSING and present != applied
            if by_hand and not self.take(path_of(self.section, self.name, path)):
                self.drifts.append(Drift(self.section, self.name, path, applied, present, value))
            else:
                yield path, (present, value)

    def base(self) -> dict[str, Any] | None:
        """What was applied before stays so where it was left as somebody made it by hand."""
        held = {each.field: each.applied for each in self.drifts}
        if "" in held:
            return dict(self.last) if isinstance(self.last, Mapping) else None
        return None if self.wanted is None else {**self.wanted, **held}

"""Which nodes the stages of one engine share when no node has room for all of them. Pure.

Hidden states pass from stage to stage with every step, so nodes of one label `fabric` come before nodes of one label `zone`
and those before any; then as few nodes as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CLOSE_LABELS = ("fabric", "zone")
"""Nodes that share the value of one are closer than others, by the first more than by the second."""


@dataclass(frozen=True)
class Site:
    """A node that may be used: how many stages it has room for, and how far it is from the model's engines (the lower the
    closer)."""

    node: str
    labels: Mapping[str, str]
    room: int
    distance: tuple[int, ...] = ()


def spread(sites: Sequence[Site], stages: int) -> list[tuple[str, int]]:
    """(node, how many stages) in order of the stages, or nothing if they have no room for all together."""
    for groups in _groups(sites):
        found = [_fill(group, stages) for group in groups if sum(site.room for site in group) >= stages]
        if found:
            return [(site.node, count) for site, count in min(found, key=_cost)]
    return []


Filled = list[tuple[Site, int]]


def _groups(sites: Sequence[Site]) -> Iterator[list[list[Site]]]:
    """Nodes that are close to each other, the closest kind of closeness first; at last all of them."""
    for label in CLOSE_LABELS:
        groups: dict[str, list[Site]] = {}
        for site in sites:
            if label in site.labels:
                groups.setdefault(site.labels[label], []).append(site)
        yield [groups[value] for value in sorted(groups)]
    yield [list(sites)]


def _fill(group: Sequence[Site], stages: int) -> Filled:
    """The roomiest nodes first, so that they are few; among equals the closest."""
    filled: Filled = []
    left = stages
    for site in sorted(group, key=lambda each: (-min(each.room, stages), each.distance, each.node)):
        count = min(site.room, left)
        if count:
            filled.append((site, count))
            left -= count
    return filled


def _cost(filled: Filled) -> tuple[int, list[tuple[tuple[int, ...], str]]]:
    return len(filled), [(site.distance, site.node) for site, _ in filled]

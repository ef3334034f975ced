"""One Prometheus page out of several processes' pages. Counters and histograms add up, and so do gauges except a few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LOWEST = frozenset({"twinpool_router_table_generation", "twinpool_router_engine_usable", "twinpool_router_engine_era"})
"""What is true of a router is what is true of the one of its processes that is furthest behind."""


@dataclass(slots=True)
class _Family:
    help: str
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)


def total(pages: Iterable[bytes], counted: Iterable[bytes] = ()) -> bytes:
    """The sum of whole `pages`, and of what ended processes have `counted`."""
    families: dict[str, _Family] = {}
    for page in (*pages, *counted):
        _add(families, page)
    return _text(families)


def counters(page: bytes) -> bytes:
    """What of a page stays true when its process has ended."""
    families: dict[str, _Family] = {}
    _add(families, page)
    return _text({name: family for name, family in families.items() if family.kind != "gauge"})


def _add(families: dict[str, _Family], page: bytes) -> None:
    name, family = "", _Family("")
    for line in page.decode().splitlines():
        if line.startswith("# HELP "):
            name, _, text = line[7:].partition(" ")
            family = families.setdefault(name, _Family(text))
        elif line.startswith("# TYPE "):
            family.kind = line.rpartition(" ")[2]
        elif line:
            sample, _, value = line.rpartition(" ")
            known = family.samples.get(sample)
            number = float(value)
            if known is not None:
                number = min(known, number) if name in LOWEST else known + number
            family.samples[sample] = number


def _text(families: dict[str, _Family]) -> bytes:
    lines: list[str] = []
    for name, family in families.items():
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
        lines += [f"{sample} {value:.12g}" for sample, value in family.samples.items()]
    return ("\n".join(lines) + "\n").encode()

"""A forecast's document as rows of text: one column per layout, units everywhere. Terminal and page show the same rows.

A figure that is built on a guess carries the number of a footnote that says what is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controlplane.physics.forecasttext import (
    MISSING,
    Document,
    headline,
    limit,
    milliseconds,
    number,
    percent,
    verdict,
)


@dataclass(frozen=True)
class Cell:
    """`spread`: half the 95% interval over seeds, in the unit of `text`; `marks`: numbers of footnotes; `over`: beyond the
    SLO."""

    text: str = MISSING
    spread: str = ""
    marks: tuple[int, ...] = ()
    over: bool = False


@dataclass(frozen=True)
class Row:
    """`label` with its unit or limit; one cell per layout."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    title: str
    rows: tuple[Row, ...]


@dataclass
class Notes:
    """Footnotes, numbered from 1 in the order in which they are first needed."""

    texts: list[str] = field(default_factory=list)

    def mark(self, texts: list[str]) -> tuple[int, ...]:
        return tuple(self._number(text) for text in texts)

    def _number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


@dataclass(frozen=True)
class Sheet:
    """Everything that is shown about the layouts. `names` and `modes`: one per column."""

    title: str
    names: tuple[str, ...]
    modes: tuple[str, ...]
    groups: tuple[Group, ...]
    footnotes: tuple[str, ...]
    """Guesses that figures are built on."""
    remarks: tuple[str, ...]
    """What else must be known: overload, refusals, idle GPUs, modes that cannot be built."""
    verdict: tuple[str, ...]
    """Who won, then a line for each of the others; empty with one layout."""
    criterion: str


def sheet(document: Document) -> Sheet:
    """The rows of a document."""
    layouts = document["layouts"]
    builder = _Builder(document)
    groups = (builder.latency(), builder.rates(), builder.gpus(), builder.transfer(), builder.money())
    remarks = [f"{layout['layout']}: {note}" for layout in layouts for note in layout["notes"]]
    remarks += [f"{mode}: {reason}" for mode, reason in document["missing"].items()]
    return Sheet(
        title=headline(document),
        names=tuple(layout["layout"] for layout in layouts),
        modes=tuple(layout["mode"] for layout in layouts),
        groups=groups,
        footnotes=tuple(builder.notes.texts),
        remarks=tuple(remarks),
        verdict=verdict(document),
        criterion=document["winner"]["criterion"] if document["winner"] else "",
    )


class _Builder:
    """Rows of one document."""

    def __init__(self, document: Document) -> None:
        self.layouts: list[Document] = document["layouts"]
        self.inputs: Document = document["inputs"]
        self.notes = Notes()

    def latency(self) -> Group:
        slo = self.inputs["slo"]
        return Group(
            "Latency",
            (
                self._latency("TTFT, p50", "ttft_ms", "p50"),
                self._latency(f"TTFT, p99 (limit {limit(slo['ttft_ms'])})", "ttft_ms", "p99", slo["ttft_ms"]),
                self._latency("ITL, p50", "itl_ms", "p50"),
                self._latency(f"ITL, p99 (limit {limit(slo['itl_ms'])})", "itl_ms", "p99", slo["itl_ms"]),
                self._latency("Whole answer, p50", "e2e_ms", "p50"),
                self._latency("Whole answer, p99", "e2e_ms", "p99"),
            ),
        )

    def rates(self) -> Group:
        return Group(
            "Rate",
            (
                self._figure("Requests served, req/s", "requests_per_second", number),
                self._figure("Output, tok/s", "tokens_per_second", number),
                self._figure("Output per GPU, tok/s", "tokens_per_second_per_gpu", number),
                self._figure("Goodput (within the SLO), req/s", "goodput", number),
                self._figure("Requests within the SLO", "attained", percent),
            ),
        )

    def gpus(self) -> Group:
        roles = list(dict.fromkeys(pool["role"] for layout in self.layouts for pool in layout["pools"]))
        rows = [
            Row("GPUs", tuple(Cell(f"{layout['gpus']:,}") for layout in self.layouts)),
            self._figure("Effective GPUs (sum of busy shares)", "effective_gpus", number),
        ]
        for role in roles:
            for name, key in (("tensor activity", "tensor_activity"), ("DRAM activity", "dram_activity")):
                rows.append(
                    Row(f"{role.capitalize()}: {name}", tuple(self._activity(layout, role, key) for layout in self.layouts))
                )
        return Group("GPUs, mean over the whole time", tuple(rows))

    def transfer(self) -> Group:
        return Group(
            "KV transfer",
            (
                self._latency("KV transfer, p50", "transfer_ms", "p50", network=True),
                self._latency("KV transfer, p99", "transfer_ms", "p99", network=True),
                self._figure("Share of the whole answer's time", "transfer_share", percent, network=True),
                self._figure("Requests that were split", "split_share", percent),
            ),
        )

    def money(self) -> Group:
        hourly = tuple(Cell(f"{layout['cost_per_hour']:,.2f}", marks=self._priced(layout)) for layout in self.layouts)
        return Group(
            "Cost",
            (
                Row("GPUs, US$/h", hourly),
                self._figure("1M output tokens, US$", "cost_per_million_tokens", number, price=True),
            ),
        )

    def _latency(self, label: str, key: str, rank: str, most: float | None = None, network: bool = False) -> Row:
        def cell(layout: Document) -> Cell:
            value = layout[key][rank]
            if value is None:
                return Cell()
            interval = layout["interval"] and layout["interval"][key][rank]
            over = most is not None and value > most
            return Cell(
                milliseconds(value),
                _spread(interval, 1000.0 if value >= 1000 else 1.0),
                self._marks(layout, network=network),
                over,
            )

        return Row(label, tuple(map(cell, self.layouts)))

    def _figure(
        self, label: str, key: str, text: Callable[[float | None], str], network: bool = False, price: bool = False
    ) -> Row:
        def cell(layout: Document) -> Cell:
            value = layout[key]
            if value is None or (network and layout["transfer_ms"]["p50"] is None):
                return Cell()
            interval = layout["interval"] and layout["interval"][key]
            return Cell(
                text(value),
                _spread(interval, 0.01 if text is percent else 1.0),
                self._marks(layout, network=network, price=price),
            )

        return Row(label, tuple(map(cell, self.layouts)))

    def _activity(self, layout: Document, role: str, key: str) -> Cell:
        pools = [pool for pool in layout["pools"] if pool["role"] == role]
        if not pools:
            return Cell()
        mean = sum(pool[key] * pool["gpus"] for pool in pools) / sum(pool["gpus"] for pool in pools)
        return Cell(percent(mean), marks=self._marks(layout))

    def _marks(self, layout: Document, network: bool = False, price: bool = False) -> tuple[int, ...]:
        marks = self.notes.mark([f"guess: {guess}" for guess in layout["guesses"]])
        if network:
            marks += self.notes.mark([*self._kinds(layout, "network_basis", _network)])
        return marks + self._priced(layout) if price else marks

    def _priced(self, layout: Document) -> tuple[int, ...]:
        return self.notes.mark([*self._kinds(layout, "price_basis", _price)])

    def _kinds(self, layout: Document, basis: str, told: Callable[[str, Document], str]) -> Iterator[str]:
        """What is guessed about the kinds of GPU in a layout."""
        for kind in dict.fromkeys(pool["text"].partition("@")[2] for pool in layout["pools"]):
            facts = self.inputs["gpus"][kind]
            if facts[basis] == "guess":
                yield told(kind, facts)


def _price(kind: str, facts: Document) -> str:
    return f"guess: {kind} at its list price, {facts['price_per_hour']:.2f} US$ per GPU-hour; --price {kind}=… gives another"


def _network(kind: str, facts: Document) -> str:
    return (
        f"guess: {kind} on the usual network card, {facts['network_gbps']:g} Gb/s per engine; --network-gbps gives another"
    )


def _spread(interval: list[float] | None, unit: float) -> str:
    """Half of the interval, in units of which one is `unit`."""
    if not interval:
        return ""
    half = (interval[1] - interval[0]) / 2 / unit
    if not half:
        return ""
    return f"± {half:,.0f}" if half >= 10 else f"± {half:.2g}"

"""What this router has done since it started, for /metrics and for its own telemetry row."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

PACE_BOUNDS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        self.sum += seconds
        self.count += 1
        place = bisect_left(self.bounds, seconds)
        if place < len(self.counts):
            self.counts[place] += 1


def _of(histograms: dict[str, Histogram], model: str, bounds: Sequence[float]) -> Histogram:
    found = histograms.get(model)
    if found is None:
        found = histograms[model] = Histogram(bounds)
    return found


@dataclass(slots=True)
class Served:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Handed:
    handoffs: int = 0
    kv_bytes: int = 0
    seconds: float = 0.0
    """From the end of prefill to the first byte."""


class Counters:
    def __init__(self) -> None:
        self.in_flight = 0
        self.requests = 0
        self.failed = 0
        """Answers that are an engine's or the router's fault: status 5xx and streams that were cut."""
        self.retried = 0
        self.resumed = 0
        """Streams that another engine carried on, once for each time."""
        self.set_aside = 0
        self.by_outcome: Counter[tuple[str, str, str, str]] = Counter()
        """(model, path, reason, outcome)"""
        self.ttft: dict[str, Histogram] = {}
        self.pace: dict[str, Histogram] = {}
        self.faults: Counter[tuple[str, str]] = Counter()
        """(engine, kind of fault) of legs that failed."""
        self.engines: dict[str, Served] = {}
        """By engine that answered the client."""
        self.pairs: dict[tuple[str, str], Handed] = {}
        """By prefill and decode engine, for answers of both."""
        self.kv_checks: Counter[str] = Counter()
        """Late answers that were held: believed or dropped."""

    def saw_ttft(self, model: str, seconds: float) -> None:
        _of(self.ttft, model, TTFT_BOUNDS_S).add(seconds)

    def saw_pace(self, model: str, seconds: float) -> None:
        """Mean time between two output tokens of a stream."""
        _of(self.pace, model, PACE_BOUNDS_S).add(seconds)

    def finished(
        self,
        prefill: str,
        decode: str,
        prompt_tokens: int | None,
        output_tokens: int | None,
        kv_bytes: int | None,
        handoff_s: float | None,
    ) -> None:
        """A request is over that these engines had, as far as it got. "": none."""
        if not decode:
            return
        served = self.engines.get(decode)
        if served is None:
            served = self.engines[decode] = Served()
        served.requests += 1
        served.prompt_tokens += prompt_tokens or 0
        served.output_tokens += output_tokens or 0
        if prefill and handoff_s is not None:
            handed = self.pairs.get((prefill, decode))
            if handed is None:
                handed = self.pairs[(prefill, decode)] = Handed()
            handed.handoffs += 1
            handed.kv_bytes += kv_bytes or 0
            handed.seconds += handoff_s

    def keep(self, engines: Set[str]) -> None:
        """Forgets engines that are no more, so that a fleet that changes does not fill memory and page."""
        self.engines = {id: served for id, served in self.engines.items() if id in engines}
        self.pairs = {pair: handed for pair, handed in self.pairs.items() if pair[0] in engines and pair[1] in engines}
        self.faults = Counter({key: count for key, count in self.faults.items() if key[0] in engines})


class Page:
    """Prometheus text format 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        self._lines += [f"{name}{_labels(labels)} {value:.12g}" for labels, value in samples]

    def histogram(self, name: str, text: str, label: str, histograms: dict[str, Histogram]) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        for value, histogram in histograms.items():
            running = 0
            for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
                running += count
                self._lines.append(f"{name}_bucket{_labels({label: value, 'le': repr(bound)})} {running}")
            self._lines.append(f"{name}_bucket{_labels({label: value, 'le': '+Inf'})} {histogram.count}")
            self._lines.append(f"{name}_sum{_labels({label: value})} {histogram.sum:.12g}")
            self._lines.append(f"{name}_count{_labels({label: value})} {histogram.count}")

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in labels.values())
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(labels, escaped, strict=True)) + "}"

"""What an agent counts of its own work, for its page /metrics. Written by its loop, read by the page's thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import Histogram

from controlplane.core.protocol import GpuRow

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def _histogram(name: str, text: str) -> Histogram:
    return Histogram(name, text, buckets=SECONDS, registry=None)


@dataclass
class Counts:
    """What became of this agent's engines, commands and scrapes since it started."""

    events: Counter[str] = field(default_factory=lambda: Counter(started=0, ready=0, failed=0, stopped=0))
    commands: Counter[str] = field(default_factory=lambda: Counter(done=0, refused=0))
    scrapes: Counter[str] = field(default_factory=lambda: Counter(done=0, failed=0))
    scrape_seconds: Histogram = field(
        default_factory=lambda: _histogram("twinpool_agent_scrape_seconds", "How long scrapes of engines took.")
    )


@dataclass
class Sampled:
    """What a sampler has done. `gpus`: the newest rows, taken at `at` (Unix seconds)."""

    gpus: Sequence[GpuRow] = ()
    at: float = 0.0
    records: Counter[str] = field(default_factory=lambda: Counter(sent=0, dropped=0))
    samples: Counter[str] = field(default_factory=lambda: Counter(told=0, untold=0))
    """Of GPUs; untold: it did not say how busy it was."""
    seconds: Histogram = field(
        default_factory=lambda: _histogram(
            "twinpool_agent_sample_seconds", "How long it took to read GPUs, engines and node once."
        )
    )

    def note(self, gpus: Sequence[GpuRow], at: float) -> None:
        self.gpus, self.at = gpus, at
        told = sum(row.tensor is not None or row.dram is not None for row in gpus)
        self.samples["told"] += told
        self.samples["untold"] += len(gpus) - told

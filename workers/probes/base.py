"""The port: what accelerators are there, and what each of them did in the last second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controlplane.core.protocol import GpuFact, GpuRow
from workers.metrics import GpuReport


class ProbeFailed(RuntimeError):
    """The accelerators cannot be read; the message names the remedy."""


@dataclass(frozen=True)
class Holder:
    """The engine that has a GPU, and what it says of that GPU itself (simulated engines do, while they are scraped)."""

    engine: str
    report: GpuReport | None


class Probe(Protocol):
    slow: bool
    """Whether `sample` may block for a while, so that it belongs in a thread."""

    def gpus(self) -> tuple[GpuFact, ...]: ...

    def sample(self, holders: Mapping[str, Holder]) -> list[GpuRow]:
        """One row per GPU. `holders`: by uuid, only GPUs that an engine has. What is not known is None, never 0."""
        ...

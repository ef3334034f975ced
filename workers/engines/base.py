"""The port between the node agent and the kinds of engine it can run. A driver only builds a launch; the agent runs,
watches, verifies and scrapes every kind alike, because all of them speak vLLM's HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from controlplane.core.protocol import EngineSpec


class SpecRefused(ValueError):
    """The spec cannot be launched on this node: the message names the reason and the remedy."""


@dataclass(frozen=True)
class Place:
    """Where one rank of an engine runs, chosen by the agent."""

    host: str
    port: int
    side_port: int
    """NIXL side channel; free on `host`."""
    folder: Path
    """This incarnation's working folder (exists, private to the agent)."""
    shared: Path
    """A folder that all engines of this node can reach (ExampleConnector's storage)."""
    incarnation: int
    engine_key: str = field(repr=False)
    gpu_indices: tuple[int, ...] = ()
    gang_key: bytes = field(default=b"", repr=False)
    """Shared by the ranks of an engine of several."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values for the secret names in spec.env."""


@dataclass(frozen=True)
class Launch:
    """A process to start: no shell, no secret in argv."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    start_timeout_s: float = 600.0


class Driver(Protocol):
    kind: str

    def launch(self, spec: EngineSpec, rank: int, place: Place) -> Launch:
        """The process for this rank. Raises SpecRefused; touches nothing outside `place.folder`."""
        ...

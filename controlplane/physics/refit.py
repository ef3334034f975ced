"""All coefficients refitted at once, beside those that core/gpus.py holds. Reads the measurements; writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.core.gpus import STACK_2023
from controlplane.physics import fitting
from controlplane.physics.fitting import Calibration
from controlplane.physics.fitting_errors import measured
from controlplane.physics.fitting_rows import phase_times

ROUNDING = 0.006
"""Two coefficients are the same if they differ by less than this share: half a unit of their last digit, at most, and what
solvers differ by."""


@dataclass(frozen=True)
class Compared:
    """A coefficient: what the fit gives, rounded as it would be committed, and what is committed."""

    name: str
    fitted: float
    committed: float
    unit: str

    @property
    def same(self) -> bool:
        return abs(self.fitted - self.committed) <= ROUNDING * abs(self.fitted)


def refit() -> list[Compared]:
    """Fits today's efficiencies, then the 2023 stack on them, then BLOOM's host floor in that stack."""
    efficiencies = {name: fitting.rounded(value) for name, value in fitting.fit_efficiencies(phase_times()).items()}
    current = fitting.with_efficiencies(efficiencies)
    fitted = fitting.fit_stack(measured("llama-2-70b"), current)
    past = fitting.with_stack({name: fitting.rounded(value) for name, value in fitted.items()}, current)
    floors = fitting.fit_host_floor(measured("bloom-176b"), past, "bloom")
    host = {**(past.stack.host_layer_s or {}), **{key: fitting.rounded(value) for key, value in floors.items()}}
    return [*_efficiencies(current), *_stack(past, host)]


def _efficiencies(fitted: Calibration) -> Iterator[Compared]:
    committed = Calibration.committed().efficiencies
    for architecture, row in fitted.efficiencies.items():
        other = committed[architecture]
        for name in ("linear", "weights", "kv", "link"):
            yield Compared(f"{architecture}: {name}", getattr(row, name), getattr(other, name), "")
        for name in ("collective_s", "collective_per_peer_s", "collective_prefill_s", "layer_s"):
            yield Compared(f"{architecture}: {name}", getattr(row, name), getattr(other, name), "s")


def _stack(fitted: Calibration, host: fitting.Floors) -> Iterator[Compared]:
    for name in ("prefill", "collective", "collective_long", "host_prefill", "overlap"):
        yield Compared(f"2023: {name}", getattr(fitted.stack, name), getattr(STACK_2023, name), "")
    yield Compared("2023: sequence_s", fitted.stack.sequence_s, STACK_2023.sequence_s, "s")
    for (model_type, architecture), seconds in host.items():
        committed = STACK_2023.host_s(model_type, architecture)
        yield Compared(f"2023: host_layer_s of {model_type} on {architecture}", seconds, committed, "s")

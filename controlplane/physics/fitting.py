"""Refits the coefficients of core/gpus.py to measured phases. Decides nothing else; no files but the measurements.

Least squares on ln(predicted / measured), with a loss that grows linearly for outliers (soft L1), so that a row counts by
its relative error. Launch and all-reduce costs cannot be told apart by rows that all have several GPUs, so every
coefficient is held near a round value by a weak prior: being off by its `spread` (a natural logarithm) costs as much as one
row that is off by PRIOR_WEIGHT. The solver is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.optimize import brentq, least_squares

from controlplane.core.gpus import CURRENT, GPUS, STACK_2023, Architecture, Efficiency, Gpu, Stack
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import read_config
from controlplane.physics.fitting_rows import Phase

PRIOR_WEIGHT = 0.02
DIGITS = 3
"""Of a coefficient as committed."""
CALIBRATION_TOKENS = 512


@dataclass(frozen=True)
class Coefficient:
    """One number to fit; `prior` is where it starts and is held near."""

    name: str
    prior: float
    spread: float


_EFFICIENCIES = (
    *(Coefficient(f"{arch}.{name}", 0.75, 0.25) for arch in ("hopper", "ampere") for name in ("linear", "weights", "kv")),
    Coefficient("link", 0.8, 0.25),
    Coefficient("collective_s", 5e-6, 0.7),
    Coefficient("collective_per_peer_s", 2e-6, 0.7),
    Coefficient("layer_s", 10e-6, 0.7),
    Coefficient("ampere.collective_prefill_s", 50e-6, 0.7),
)
_STACK = (
    Coefficient("prefill", 1.25, 0.25),
    Coefficient("collective", 2.5, 0.7),
    Coefficient("collective_long", 1.5, 0.7),
    Coefficient("hopper.host_s", 0.4e-3, 0.7),
    Coefficient("ampere.host_s", 0.5e-3, 0.7),
    Coefficient("host_prefill", 1.5, 0.7),
    Coefficient("overlap", 0.6, 0.7),
    Coefficient("sequence_s", 0.35e-3, 0.7),
)
Values = Mapping[str, float]
Floors = Mapping[tuple[str, Architecture], float]


@dataclass(frozen=True)
class Calibration:
    """Efficiencies by architecture and the stack they serve: all that a prediction needs besides data sheets."""

    efficiencies: Mapping[Architecture, Efficiency]
    stack: Stack = CURRENT

    @classmethod
    def committed(cls, stack: Stack = CURRENT) -> Calibration:
        """What core/gpus.py holds."""
        rows = (GPUS["h100-sxm"].efficiency, GPUS["a100-sxm"].efficiency)
        return cls({row.architecture: row for row in rows}, stack)

    def gpu(self, name: str) -> Gpu:
        row = GPUS[name]
        return replace(row, efficiency=self.efficiencies[row.efficiency.architecture])


class Predictor:
    """Predictions of one calibration; a model is set up once for all its phases."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._models: dict[tuple[str, str, int], PhaseModel] = {}

    def ratio(self, phase: Phase) -> float:
        """Predicted / measured time."""
        key = (phase.model, phase.gpu, phase.tensor_parallel)
        model = self._models.get(key)
        if model is None:
            gpu = self.calibration.gpu(phase.gpu)
            model = PhaseModel(shape(phase.model), gpu, phase.tensor_parallel, stack=self.calibration.stack)
            self._models[key] = model
        if phase.kind == "prefill":
            cost = model.prefill(int(phase.tokens), 0, phase.batch)
        else:
            cost = model.decode(phase.batch, phase.tokens)
        return cost.seconds * 1e3 / phase.milliseconds


_SHAPES: dict[str, Shape] = {}


def shape(model: str) -> Shape:
    """Of a config that ships, read once."""
    if model not in _SHAPES:
        _SHAPES[model] = read_shape(read_config(model))
    return _SHAPES[model]


def fit_efficiencies(phases: Sequence[Phase], prior_weight: float = PRIOR_WEIGHT) -> Values:
    """The coefficients of HOPPER and AMPERE that fit `phases` of the current stack best, by name."""
    return _fit(_EFFICIENCIES, phases, with_efficiencies, 0.03, prior_weight)


def with_efficiencies(values: Values) -> Calibration:
    """A calibration of the current stack with fitted `values`."""
    committed = Calibration.committed().efficiencies
    return Calibration({architecture: _efficiency(row, values) for architecture, row in committed.items()})


def _efficiency(row: Efficiency, values: Values) -> Efficiency:
    return replace(
        row,
        linear=values[f"{row.architecture}.linear"],
        weights=values[f"{row.architecture}.weights"],
        kv=values[f"{row.architecture}.kv"],
        link=values["link"],
        collective_s=values["collective_s"],
        collective_per_peer_s=values["collective_per_peer_s"],
        collective_prefill_s=values.get(f"{row.architecture}.collective_prefill_s", 0.0),
        layer_s=values["layer_s"],
    )


def fit_stack(phases: Sequence[Phase], base: Calibration) -> Values:
    """The coefficients of STACK_2023 that fit `phases` of Llama best, given today's efficiencies."""
    return _fit(_STACK, phases, lambda values: with_stack(values, base), 0.05, PRIOR_WEIGHT)


def with_stack(values: Values, base: Calibration) -> Calibration:
    """A calibration of the 2023 stack with fitted `values`; other models than Llama have no host floor in it yet."""
    stack = replace(
        STACK_2023,
        prefill=values["prefill"],
        collective=values["collective"],
        collective_long=values["collective_long"],
        host_layer_s={("llama", "hopper"): values["hopper.host_s"], ("llama", "ampere"): values["ampere.host_s"]},
        host_prefill=values["host_prefill"],
        overlap=values["overlap"],
        sequence_s=values["sequence_s"],
    )
    return replace(base, stack=stack)


def fit_host_floor(phases: Sequence[Phase], base: Calibration, model_type: str) -> Floors:
    """The host's seconds per layer for another model in the stack of `base`: one measured decode step for each GPU decides
    (batch 1 after a prompt of CALIBRATION_TOKENS), so that all other rows stay held out."""
    floors: dict[tuple[str, Architecture], float] = {}
    for gpu in dict.fromkeys(phase.gpu for phase in phases):
        architecture = GPUS[gpu].efficiency.architecture
        row = calibration_row(phases, gpu)

        def miss(host_s: float, architecture: Architecture = architecture, row: Phase = row) -> float:
            floor = {**(base.stack.host_layer_s or {}), (model_type, architecture): host_s}
            return Predictor(replace(base, stack=replace(base.stack, host_layer_s=floor))).ratio(row) - 1

        floors[model_type, architecture] = brentq(miss, 1e-5, 1e-2, xtol=1e-9)
    return floors


def calibration_row(phases: Sequence[Phase], gpu: str) -> Phase:
    """The one decode step that sets a model's host floor on `gpu`: the shortest context of its batch-1 rows at
    CALIBRATION_TOKENS."""
    rows = [p for p in phases if p.gpu == gpu and p.kind == "decode" and p.batch == 1 and p.tokens >= CALIBRATION_TOKENS]
    return min(rows, key=lambda phase: phase.tokens)


def rounded(value: float) -> float:
    """To the digits that core/gpus.py keeps."""
    return float(f"{value:.{DIGITS}g}")


def _fit(
    coefficients: Sequence[Coefficient],
    phases: Sequence[Phase],
    calibration: Callable[[Values], Calibration],
    soft: float,
    prior_weight: float,
) -> Values:
    """`soft`: the relative error from which a row's loss grows linearly."""

    def values(logs: Sequence[float]) -> dict[str, float]:
        return {each.name: each.prior * math.exp(log) for each, log in zip(coefficients, logs, strict=True)}

    def residuals(logs: Sequence[float]) -> list[float]:
        predictor = Predictor(calibration(values(logs)))
        held = [prior_weight * log / each.spread for each, log in zip(coefficients, logs, strict=True)]
        return [math.log(predictor.ratio(phase)) for phase in phases] + held

    found = least_squares(residuals, [0.0] * len(coefficients), loss="soft_l1", f_scale=soft, xtol=1e-10, ftol=1e-10)
    return values(found.x)

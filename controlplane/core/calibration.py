"""What an engine's own metrics say of the performance model's constants: read, applied, written. Pure.

A calibration belongs to one model on one kind of GPU at one tensor-parallel degree, on the software that was measured. The
fit itself is `physics.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.gpus import Gpu, gpu
from controlplane.core.modelconfig import Shape
from controlplane.core.perf import PhaseModel

VERSION = 1
CPU = "cpu"
"""A kind that a calibration may name and the GPU table does not hold: vLLM on a processor."""


class CalibrationRefused(ValueError):
    """A calibration document cannot be used; the message names the field and the remedy."""


class _Processor(Gpu):
    """Its figures are nominal: only what a calibration makes of its peaks means anything."""

    @property
    def memory_bytes(self) -> int:
        """Nominal: the KV cache of an engine on a processor is what its metrics say (`Calibration.kv_tokens`)."""
        return 64 * 10**9


_CPU = _Processor(
    name=CPU,
    bf16_flops=1e12,
    fp8_flops=None,
    dram_bytes=50e9,
    link_bytes=10e9,
    power_w=100.0,
    price_per_hour=0.1,
    network_gbps=10.0,
    nvlink=False,
)


LEAST_SHARE, MOST_SHARE = 1e-7, 1e7
MOST_STEP_S = 3600.0
MOST_REQUEST_S = 3600.0
MOST_TENSOR_PARALLEL = 1024
MOST_TOKENS = 1 << 40
LONGEST_NAME = 512
"""Of what a fit can find. Beyond, a file was made by hand, and a forecast's times would pass what numbers can hold."""


@dataclass(frozen=True)
class Constants:
    """Those of `gpus.Efficiency` that an engine's metrics can tell. Raises ValueError."""

    linear: float
    """Share of peak FLOPs in linear kernels; may pass 1 where the peak is nominal."""
    attention: float
    """Share of peak FLOPs in prefill attention."""
    kv: float
    """Share of DRAM bandwidth when decode attention reads KV."""
    step_s: float
    """Fixed cost of a step."""
    sequence_s: float
    """Cost of each decoding sequence in a step, whatever its length."""

    def __post_init__(self) -> None:
        for name in ("linear", "attention", "kv"):
            if not LEAST_SHARE <= getattr(self, name) <= MOST_SHARE:
                raise ValueError(f"{name} must be from {LEAST_SHARE:g} to {MOST_SHARE:g}, got {getattr(self, name)}")
        for name in ("step_s", "sequence_s"):
            if not 0 <= getattr(self, name) <= MOST_STEP_S:
                raise ValueError(f"{name} must be from 0 to {MOST_STEP_S:g} s, got {getattr(self, name)}")


@dataclass(frozen=True)
class Errors:
    """|predicted ÷ measured - 1| over the windows that were fitted."""

    median: float
    p90: float
    windows: int

    def __post_init__(self) -> None:
        if not (0 <= self.median < math.inf and 0 <= self.p90 < math.inf):
            raise ValueError(f"median and p90 must be 0 or more, got {self.median} and {self.p90}")


@dataclass(frozen=True)
class Sample:
    """What was fitted to: `windows` intervals between scrapes, `seconds` together (0: the pages did not tell the time)."""

    windows: int
    seconds: float
    steps: int
    prompt_tokens: int
    """Computed, not cached or transferred."""
    output_tokens: int


@dataclass(frozen=True)
class Calibration:
    """One engine, as its metrics showed it. Raises ValueError for values that cannot be."""

    model: str
    gpu: str
    tensor_parallel: int
    constants: Constants
    sample: Sample
    errors: Mapping[str, Errors]
    """By measure: itl, prefill."""
    uncertain: tuple[str, ...] = ()
    """Constants that the load did not tell: as in the GPU table, or known to no better than a factor of 1.5."""
    request_s: float = 0.0
    """What a request waits outside the engine's steps: HTTP, tokens, the way between processes. Not part of a step."""
    kv_tokens: int | None = None
    """KV cache of the engine; None: it did not say."""
    block_size: int | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version {self.version} is not known; this release reads version {VERSION}")
        if len(self.model) > LONGEST_NAME:
            raise ValueError(f"model must have at most {LONGEST_NAME} characters")
        if not 0 <= self.request_s <= MOST_REQUEST_S:
            raise ValueError(f"request_s must be from 0 to {MOST_REQUEST_S:g} s, got {self.request_s}")
        if not 1 <= self.tensor_parallel <= MOST_TENSOR_PARALLEL:
            raise ValueError(f"tensor_parallel must be from 1 to {MOST_TENSOR_PARALLEL}, got {self.tensor_parallel:g}")
        for name in ("kv_tokens", "block_size"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_TOKENS:
                raise ValueError(f"{name} must be from 1 to {MOST_TOKENS:,}, got {value:g}")
        base_gpu(self.gpu)

    def notes(self, tensor_parallel: int) -> list[str]:
        """What must be known where its constants are used for engines of so many GPUs."""
        errors = ", ".join(f"{error.median:.0%} of {name}" for name, error in self.errors.items())
        notes = [
            f"{self.gpu}: constants from the metrics of {self.model} at TP{self.tensor_parallel} (median error {errors})"
        ]
        if self.uncertain:
            notes.append(f"{self.gpu}: the calibration's load did not tell {', '.join(self.uncertain)}")
        if tensor_parallel != self.tensor_parallel:
            notes.append(f"{self.gpu}: calibrated at TP{self.tensor_parallel}, used at TP{tensor_parallel}")
        if self.request_s:
            notes.append(f"{self.gpu}: HTTP and tokens add {self.request_s * 1e3:.1f} ms to every TTFT, not counted here")
        return notes

    def calibrated_gpu(self) -> Gpu:
        """The kind of GPU as this engine showed it: what to build a `perf.PhaseModel` on."""
        return calibrated(base_gpu(self.gpu), self.constants)

    def phase_model(self, shape: Shape, kv_dtype: str | None = None) -> PhaseModel:
        """The model `shape` on the engine that was calibrated. Raises DoesNotFit for another model's head counts."""
        return PhaseModel(shape, self.calibrated_gpu(), self.tensor_parallel, kv_dtype)


def calibrated(base: Gpu, constants: Constants) -> Gpu:
    """`base` with these constants; what they do not tell stays as in the GPU table."""
    efficiency = replace(
        base.efficiency,
        linear=constants.linear,
        attention=constants.attention,
        kv=constants.kv,
        step_s=constants.step_s,
        sequence_s=constants.sequence_s,
    )
    return replace(base, efficiency=efficiency, basis="calibrated")


def base_gpu(name: str) -> Gpu:
    """The kind before calibration: the GPU table's row, or the processor. Raises UnknownGpu, a ValueError."""
    return _CPU if name == CPU else gpu(name)


def read_calibration(document: Any) -> Calibration:
    """A calibration from parsed JSON. Raises CalibrationRefused naming the field."""
    try:
        return decode(Calibration, document)
    except WrongShape as error:
        raise CalibrationRefused(f"{error}; write it with `manage.py calibrate`") from None


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """The JSON object that `read_calibration` takes."""
    document: dict[str, Any] = encode(calibration)
    return document

"""What the performance model knows about each kind of GPU: data-sheet peaks and the efficiencies found by fitting. Pure.

Peaks are dense (no sparsity), per GPU, in units of 1/s. The efficiencies belong to an architecture: they were fitted on
measured phases of `a100-sxm` and `h100-sxm` (the method and its errors are in docs/model-accuracy.md once refitted). Every
other kind borrows Hopper's and is marked as a guess, which must be shown wherever a number built on it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.core.accelerators import MEMORY_BYTES

Basis = Literal["calibrated", "guess"]


@dataclass(frozen=True)
class Efficiency:
    """Shares of the data-sheet peaks that kernels reach, and the fixed costs of a step."""

    linear: float
    """Of peak FLOPs, in linear kernels and prefill attention."""
    weights: float
    """Of DRAM bandwidth, when weights are read."""
    kv: float
    """Of DRAM bandwidth, when KV is read in decode attention."""
    link: float = 0.87
    """Of the GPU-to-GPU link, in all-reduce."""
    elementwise: float = 0.7
    """Of DRAM bandwidth, in norms, activations and residuals."""
    rows_half: float = 32.0
    """Rows at which a matrix product reaches half of its efficiency."""
    collective_s: float = 5.4e-6
    """Start of one all-reduce."""
    collective_per_peer_s: float = 2.0e-6
    collective_prefill_s: float = 0.0
    """What an all-reduce in a step with prefill takes longer, times 2 (tp - 1) / tp."""
    layer_s: float = 9.0e-6
    """Kernel launches of one layer."""
    step_s: float = 0.3e-3
    """Scheduling and sampling of one step."""
    sequence_s: float = 0.0
    """Host work for each sequence of a step. In the table 0, because the measured phases do not show it; an engine's own
    calibration may."""
    attention: float | None = None
    """Of peak FLOPs, in prefill attention; None: as `linear`."""


HOPPER = Efficiency(linear=0.76, weights=0.83, kv=0.76)
AMPERE = Efficiency(linear=0.85, weights=0.68, kv=0.50, collective_prefill_s=75e-6)


@dataclass(frozen=True)
class Gpu:
    name: str
    bf16_flops: float
    fp8_flops: float | None
    """None: the GPU has no FP8 units; FP8 weights are then multiplied in bf16."""
    dram_bytes: float
    """Bandwidth, bytes/s."""
    link_bytes: float
    """To the other GPUs of a tensor-parallel group, one direction, bytes/s."""
    power_w: float
    """Board limit."""
    price_per_hour: float
    """US$ for one GPU-hour: a rounded list price of 2025, always a guess; whoever shows money lets it be replaced."""
    network_gbps: float
    """Of the network card that one GPU has for itself in the usual server, Gb/s."""
    nvlink: bool = True
    """The GPUs of a server reach each other over NVLink or its like (`link_bytes`), not over PCIe."""
    efficiency: Efficiency = HOPPER
    basis: Basis = "guess"

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES[self.name]


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-sxm", 312e12, None, 2.039e12, 300e9, 400, 1.8, 200, True, AMPERE, "calibrated"),
        Gpu("h100-sxm", 989e12, 1979e12, 3.35e12, 450e9, 700, 3.0, 400, True, HOPPER, "calibrated"),
        Gpu("h100-pcie", 756e12, 1513e12, 2.0e12, 64e9, 350, 2.4, 200, False),
        Gpu("h100-nvl", 835e12, 1671e12, 3.9e12, 300e9, 400, 2.8, 200),
        Gpu("h200-sxm", 989e12, 1979e12, 4.8e12, 450e9, 700, 3.8, 400),
        Gpu("b200", 2250e12, 4500e12, 8.0e12, 900e9, 1000, 5.5, 400),
        Gpu("gb200", 2500e12, 5000e12, 8.0e12, 900e9, 1200, 6.5, 400),
        Gpu("l40s", 362e12, 733e12, 0.864e12, 32e9, 350, 1.2, 100, False),
        Gpu("l4", 121e12, 242e12, 0.3e12, 32e9, 72, 0.7, 50, False),
        Gpu("mi300x", 1307e12, 2615e12, 5.3e12, 448e9, 750, 3.0, 400),
    )
}


class UnknownGpu(ValueError):
    """A kind of GPU that is not in the table."""


def gpu(name: str) -> Gpu:
    """The table's row for `name`. Raises UnknownGpu, which lists the kinds there are."""
    try:
        return GPUS[name]
    except KeyError:
        raise UnknownGpu(f"GPU kind {name[:60]!r} is not known (known: {', '.join(GPUS)})") from None

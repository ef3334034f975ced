"""What the performance model knows about each kind of GPU: data-sheet peaks and the efficiencies found by fitting. Pure.

Peaks are dense (no sparsity), per GPU, in units of 1/s. The coefficients of HOPPER, AMPERE and STACK_2023 are those that
`manage.py fit` finds in the measured phases of `a100-sxm` and `h100-sxm` (method and errors: docs/model-accuracy.md). Every
other kind borrows Hopper's and is marked as a guess, which must be shown wherever a number built on it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.core.accelerators import MEMORY_BYTES

Basis = Literal["calibrated", "guess"]
Architecture = Literal["ampere", "hopper"]


@dataclass(frozen=True)
class Efficiency:
    """Shares of the data-sheet peaks that kernels reach, and the fixed costs of a step."""

    architecture: Architecture
    linear: float
    """Of peak FLOPs, in linear kernels and prefill attention."""
    weights: float
    """Of DRAM bandwidth, when weights are read."""
    kv: float
    """Of DRAM bandwidth, when KV is read in decode attention."""
    link: float
    """Of the GPU-to-GPU link, in all-reduce."""
    collective_s: float
    """Start of one all-reduce."""
    collective_per_peer_s: float
    layer_s: float
    """Kernel launches of one layer."""
    collective_prefill_s: float = 0.0
    """What an all-reduce in a step with prefill takes longer, times 2 (tp - 1) / tp."""
    elementwise: float = 0.7
    """Of DRAM bandwidth, in norms, activations and residuals. Fixed by hand."""
    rows_half: float = 32.0
    """Rows at which a matrix product reaches half of its efficiency. Fixed by hand."""
    step_s: float = 0.3e-3
    """Scheduling and sampling of one step. Fixed by hand."""
    attention: float | None = None
    """Of peak FLOPs, in prefill attention, where an engine's own calibration tells it from `linear`; None: the same."""
    sequence_s: float = 0.0
    """Host work for each decode sequence of a step, as an engine's own calibration tells it; beside the stack's."""


@dataclass(frozen=True)
class Stack:
    """What the serving software adds to the GPUs' time. A step takes max(gpu, host, overlap x (gpu + host)) + sequence_s for
    each decode; `host` is what the server's processor needs to launch the step's kernels."""

    name: str
    prefill: float = 1.0
    """Factor on what kernels take in a step with prefill."""
    collective: float = 1.0
    """Factor on all-reduces."""
    collective_long: float = 1.0
    """Another one on their messages over more than LONG_MESSAGE_TOKENS tokens among more than two GPUs."""
    collective_prefill: float = 1.0
    """Factor on Efficiency.collective_prefill_s."""
    host_layer_s: Mapping[tuple[str, Architecture], float] | None = None
    """By model type and the architecture of the server's GPUs, per layer; None: the host is never waited for."""
    host_prefill: float = 1.0
    """Factor on it in a step with prefill."""
    overlap: float = 0.0
    """Between 0.5 (host and GPU work fully at the same time) and 1 (one after the other). 0 without a host floor."""
    sequence_s: float = 0.0
    """For each decode sequence of a step."""

    def host_s(self, model_type: str, architecture: Architecture) -> float:
        """Per layer; a model type without a figure of its own gets Llama's."""
        if self.host_layer_s is None:
            return 0.0
        return self.host_layer_s.get((model_type, architecture), self.host_layer_s["llama", architecture])

    def line(self, gpu_s: float, host_s: float) -> tuple[float, float, float]:
        """max(gpu, host, overlap x (gpu + host)) near `gpu_s` as (share of gpu, constant, gpu seconds where it bends)."""
        if not host_s:
            return 1.0, 0.0, math.inf
        shared_from, shared_until = host_s * (1 / self.overlap - 1), host_s * self.overlap / (1 - self.overlap)
        if gpu_s < shared_from:
            return 0.0, host_s, shared_from
        if gpu_s < shared_until:
            return self.overlap, self.overlap * host_s, shared_until
        return 1.0, 0.0, math.inf


LONG_MESSAGE_TOKENS = 2048


@dataclass(frozen=True)
class ExpertCosts:
    """What layers of experts add to their matrix products. Guesses: nothing here was measured."""

    imbalance: float = 1.15
    """Rows computed / rows needed: some experts get more tokens than others, and tiles are padded."""
    exchange_passes: float = 4.0
    """How often a token's copy for one expert is written or read on its way there and back."""
    layer_s: float = 20e-6
    """Choosing experts and sorting tokens, per layer."""


EXPERT_COSTS = ExpertCosts()
HOPPER = Efficiency("hopper", 0.756, 0.832, 0.757, 0.882, 4.97e-6, 2.04e-6, 9.94e-6)
AMPERE = Efficiency("ampere", 0.844, 0.676, 0.509, 0.882, 4.97e-6, 2.04e-6, 9.94e-6, collective_prefill_s=73.9e-6)
CURRENT = Stack("current")
STACK_2023 = Stack(
    "2023",
    prefill=1.30,
    collective=2.44,
    collective_long=2.01,
    collective_prefill=0.0,
    host_layer_s={
        ("llama", "hopper"): 0.374e-3,
        ("llama", "ampere"): 0.545e-3,
        ("bloom", "hopper"): 0.509e-3,
        ("bloom", "ampere"): 0.574e-3,
    },
    host_prefill=1.55,
    overlap=0.605,
    sequence_s=0.325e-3,
)
"""vLLM as Splitwise measured it in 2023 (Patel et al., ISCA 2024): decode waits for the host. BLOOM's own host floor is set
from one measured row per GPU."""
STACKS: Mapping[str, Stack] = {stack.name: stack for stack in (CURRENT, STACK_2023)}


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
    server_gpus: int = 8
    """GPUs that share these links; larger tensor-parallel groups talk over the network."""
    efficiency: Efficiency = HOPPER
    basis: Basis = "guess"

    def group_link_bytes(self, tensor_parallel: int) -> float:
        """Bandwidth between the GPUs of a tensor-parallel group, one direction, bytes/s."""
        if tensor_parallel <= self.server_gpus:
            return self.link_bytes
        return min(self.link_bytes, self.network_gbps * 1e9 / 8)

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES[self.name]


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-sxm", 312e12, None, 2.039e12, 300e9, 400, 1.8, 200, efficiency=AMPERE, basis="calibrated"),
        Gpu("h100-sxm", 989e12, 1979e12, 3.35e12, 450e9, 700, 3.0, 400, efficiency=HOPPER, basis="calibrated"),
        Gpu("h100-pcie", 756e12, 1513e12, 2.0e12, 64e9, 350, 2.4, 200, False),
        Gpu("h100-nvl", 835e12, 1671e12, 3.9e12, 300e9, 400, 2.8, 200),
        Gpu("h200-sxm", 989e12, 1979e12, 4.8e12, 450e9, 700, 3.8, 400),
        Gpu("b200", 2250e12, 4500e12, 8.0e12, 900e9, 1000, 5.5, 400),
        Gpu("gb200", 2500e12, 5000e12, 8.0e12, 900e9, 1200, 6.5, 400, server_gpus=72),
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

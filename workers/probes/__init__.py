"""The port between the sampler and the accelerators of a node, and the choice of an implementation."""

from __future__ import annotations

from workers.config import Accelerators
from workers.probes.base import Holder, Probe
from workers.probes.cpu import CpuProbe
from workers.probes.nvml import NvmlProbe
from workers.probes.simulated import SimulatedProbe

__all__ = ["Holder", "Probe", "open_probe"]


def open_probe(node: str, accelerators: Accelerators) -> Probe:
    """The probe for what the agent was told to use. Raises ProbeFailed when NVML cannot be had."""
    if accelerators.source == "nvml":
        return NvmlProbe.open()
    if accelerators.source == "cpu":
        return CpuProbe(node, accelerators.count)
    return SimulatedProbe(node, accelerators.kind, accelerators.count)

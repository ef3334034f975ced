"""GPUs that do not exist: what they do is what the simulated engine on them says it does."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.core.accelerators import MEMORY_BYTES
from controlplane.core.protocol import GpuFact, GpuRow
from workers.probes.base import Holder


class SimulatedProbe:
    slow = False

    def __init__(self, node: str, kind: str, count: int) -> None:
        self._gpus = tuple(
            GpuFact(f"sim-{node}-{index}", index, kind, MEMORY_BYTES[kind], simulated=True) for index in range(count)
        )

    def gpus(self) -> tuple[GpuFact, ...]:
        return self._gpus

    def sample(self, holders: Mapping[str, Holder]) -> list[GpuRow]:
        return [_row(gpu.uuid, holders.get(gpu.uuid)) for gpu in self._gpus]


def _row(uuid: str, holder: Holder | None) -> GpuRow:
    if holder is None:  # nobody uses it: idle is known
        return GpuRow(uuid, tensor=0.0, tensor_peak=0.0, dram=0.0, memory_used_bytes=0)
    report = holder.report
    if report is None:
        return GpuRow(uuid, holder.engine)
    memory = None if report.memory_used_bytes is None else int(report.memory_used_bytes)
    return GpuRow(uuid, holder.engine, report.tensor, report.tensor_peak, report.dram, memory, report.power_w)

"""Places for engines on a machine without a GPU. A processor has no tensor cores: their activity is not known."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from controlplane.core.protocol import GpuFact, GpuRow
from workers.probes.base import Holder


class CpuProbe:
    slow = False

    def __init__(self, node: str, count: int) -> None:
        share = psutil.virtual_memory().total // count
        self._gpus = tuple(GpuFact(f"cpu-{node}-{index}", index, "cpu", share) for index in range(count))

    def gpus(self) -> tuple[GpuFact, ...]:
        return self._gpus

    def sample(self, holders: Mapping[str, Holder]) -> list[GpuRow]:
        return [GpuRow(gpu.uuid, holders[gpu.uuid].engine if gpu.uuid in holders else "") for gpu in self._gpus]

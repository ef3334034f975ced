"""Real NVIDIA GPUs through NVML. On Hopper and newer its GPM metrics give tensor-core activity and DRAM bandwidth as
averages between two samples; older GPUs tell only for which share of the time kernels ran and memory was accessed, which
is an upper bound of both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

from controlplane.core.accelerators import kind_of_nvml_name
from controlplane.core.protocol import GpuFact, GpuRow
from workers.probes.base import Holder, ProbeFailed

log = logging.getLogger(__name__)

_TENSOR = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
_DRAM = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


def share(percent: float | None) -> float | None:
    """A percentage as 0..1, cut to that range; NaN and None as None."""
    if percent is None or percent != percent:
        return None
    return min(1.0, max(0.0, percent / 100.0))


@dataclass
class _Device:
    handle: Any
    fact: GpuFact
    gpm: bool
    samples: list[Any] = field(default_factory=list)
    """GPM: the last sample and a spare one; they change places each second."""


class NvmlProbe:
    slow = True

    def __init__(self, devices: list[_Device]) -> None:
        self._devices = devices

    @classmethod
    def open(cls) -> NvmlProbe:
        """Raises ProbeFailed."""
        try:
            pynvml.nvmlInit()
            devices = [_open_device(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise ProbeFailed(
                f"the NVIDIA driver cannot be asked ({error}): install it, or start the agent with --accelerators cpu:N"
            ) from error
        if not devices:
            raise ProbeFailed("the NVIDIA driver shows no GPU: start the agent with --accelerators cpu:N")
        return cls(devices)

    def gpus(self) -> tuple[GpuFact, ...]:
        return tuple(device.fact for device in self._devices)

    def sample(self, holders: Mapping[str, Holder]) -> list[GpuRow]:
        rows = []
        for device in self._devices:
            uuid = device.fact.uuid
            tensor, dram = _gpm_activity(device) if device.gpm else _utilisation(device.handle)
            memory, power = (
                _ask(pynvml.nvmlDeviceGetMemoryInfo, device.handle),
                _ask(pynvml.nvmlDeviceGetPowerUsage, device.handle),
            )
            rows.append(
                GpuRow(
                    uuid,
                    holders[uuid].engine if uuid in holders else "",
                    tensor=share(tensor),
                    dram=share(dram),
                    memory_used_bytes=None if memory is None else int(memory.used),
                    power_w=None if power is None else power / 1000.0,
                )
            )
        return rows


def _open_device(index: int) -> _Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    fact = GpuFact(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        kind=kind_of_nvml_name(_text(pynvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )
    support = _ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
    device = _Device(handle, fact, gpm=bool(support and support.isSupportedDevice))
    if device.gpm:
        device.samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        _ask(pynvml.nvmlGpmSampleGet, handle, device.samples[0])
    return device


def _gpm_activity(device: _Device) -> tuple[float | None, float | None]:
    """(tensor, DRAM bandwidth) in percent since the last call."""
    last, spare = device.samples
    if _ask(pynvml.nvmlGpmSampleGet, device.handle, spare) is None:
        return None, None
    device.samples = [spare, last]
    request = gpm_request(last, spare)
    if _ask(pynvml.nvmlGpmMetricsGet, request) is None:
        return None, None
    return read_gpm(request)


def gpm_request(earlier: Any, later: Any) -> Any:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2 = earlier, later
    request.numMetrics = 2
    request.metrics[0].metricId, request.metrics[1].metricId = _TENSOR, _DRAM
    return request


def read_gpm(answer: Any) -> tuple[float | None, float | None]:
    """The two figures of an answered request; each carries an error code of its own."""
    tensor, dram = (
        metric.value if metric.nvmlReturn == pynvml.NVML_SUCCESS else None
        for metric in (answer.metrics[0], answer.metrics[1])
    )
    return tensor, dram


def _utilisation(handle: Any) -> tuple[float | None, float | None]:
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return (None, None) if rates is None else (rates.gpu, rates.memory)


def _ask(function: Any, *args: Any) -> Any:
    """What NVML answers; None if this GPU cannot tell, or not now."""
    with contextlib.suppress(pynvml.NVMLError):
        return function(*args)
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

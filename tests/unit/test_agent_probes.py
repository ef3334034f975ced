"""What probes say of accelerators, as far as that is known without one."""

from __future__ import annotations

import math

import pynvml
import pytest

from workers.metrics import GpuReport
from workers.probes import Holder, open_probe
from workers.probes.base import ProbeFailed
from workers.probes.cpu import CpuProbe
from workers.probes.nvml import NvmlProbe, gpm_request, read_gpm, share
from workers.probes.simulated import SimulatedProbe


def test_simulated_gpus_have_names_that_say_where_they_are() -> None:
    gpus = SimulatedProbe("n1", "h100-sxm", 2).gpus()
    assert [(gpu.uuid, gpu.index, gpu.kind, gpu.simulated) for gpu in gpus] == [
        ("sim-n1-0", 0, "h100-sxm", True),
        ("sim-n1-1", 1, "h100-sxm", True),
    ]
    assert gpus[0].memory_bytes == 80 * 2**30


def test_a_simulated_gpu_without_an_engine_is_idle_and_one_whose_engine_is_silent_is_unknown() -> None:
    report = GpuReport(tensor=0.5, tensor_peak=0.9, dram=0.2, memory_used_bytes=1e9, power_w=300.0)
    idle, silent, busy = SimulatedProbe("n1", "h100-sxm", 3).sample(
        {"sim-n1-1": Holder("e-1", None), "sim-n1-2": Holder("e-2", report)}
    )
    assert (idle.engine, idle.tensor, idle.dram, idle.memory_used_bytes) == ("", 0.0, 0.0, 0)
    assert (silent.engine, silent.tensor, silent.dram, silent.memory_used_bytes) == ("e-1", None, None, None)
    assert (busy.engine, busy.tensor, busy.tensor_peak, busy.dram) == ("e-2", 0.5, 0.9, 0.2)
    assert (busy.memory_used_bytes, busy.power_w) == (10**9, 300.0)


def test_a_processor_slot_claims_no_activity() -> None:
    first, second = CpuProbe("n1", 2).sample({"cpu-n1-1": Holder("e-1", None)})
    assert (first.uuid, first.engine, first.tensor) == ("cpu-n1-0", "", None)
    assert (second.uuid, second.engine, second.dram) == ("cpu-n1-1", "e-1", None)


@pytest.mark.parametrize(
    ("percent", "expected"), [(50.0, 0.5), (0.0, 0.0), (100.4, 1.0), (-1.0, 0.0), (None, None), (math.nan, None)]
)
def test_percentages_become_shares(percent: float | None, expected: float | None) -> None:
    assert share(percent) == expected


def test_a_gpm_request_asks_for_tensor_activity_and_dram_bandwidth() -> None:
    request = gpm_request(None, None)
    assert request.numMetrics == 2
    assert [request.metrics[0].metricId, request.metrics[1].metricId] == [5, 10]  # nvml.h: ANY_TENSOR_UTIL, DRAM_BW_UTIL


def test_a_gpm_figure_with_an_error_of_its_own_is_not_known() -> None:
    answer = gpm_request(None, None)
    answer.metrics[0].value, answer.metrics[1].value = 37.5, 12.0
    answer.metrics[1].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert read_gpm(answer) == (37.5, None)


def test_a_machine_without_a_driver_gets_a_remedy() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(ProbeFailed, match="--accelerators cpu:N"):
            NvmlProbe.open()
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_the_probe_follows_the_command_line() -> None:
    from workers.config import parse_accelerators

    assert isinstance(open_probe("n1", parse_accelerators("cpu:1")), CpuProbe)
    assert isinstance(open_probe("n1", parse_accelerators("sim:1xl4")), SimulatedProbe)

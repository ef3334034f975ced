"""The advisor's situation and gain from figures alone, without a cluster: model, GPUs, network, lengths, targets. Pure.

Rates are the closed form's (core/capacity) for the best split of each mode; whoever has the seconds simulates that layout
and passes the ratio between both on, so that what an input changes is judged from where the simulation stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from controlplane.core import kvsize
from controlplane.core.advisor_checks import transfer_s
from controlplane.core.advisor_gain import gain_of
from controlplane.core.advisor_types import Gain, Measured, ModeForecast, Situation, Transport
from controlplane.core.capacity import local_cells
from controlplane.core.perf import DoesNotFit
from controlplane.core.planner_layouts import Layouted, half_loaded
from controlplane.core.planner_search import Search
from controlplane.core.planner_types import ModelNow, PoolNow
from controlplane.core.protocol import Mode, Role, Slo
from controlplane.core.shapes import Shape
from controlplane.core.workload import Mix

TCP_SHARE = 0.5
"""Of the network that TCP reaches when KV goes through both hosts. A guess."""
DEGREES = (1, 2, 4, 8)
MODES: tuple[Mode, ...] = ("monolithic", "disaggregated", "conditional")
PRECISION = 1.03
"""Of a highest rate, relative."""
LOWEST_RATE = 1e-3
MAX_NUM_SEQS = 1024


@dataclass(frozen=True)
class Offline:
    """What is asked for. `mix`: of whole requests, cached tokens included. `samples`: requests behind a recorded mix.
    `degrees`: tensor-parallel degrees to try by role, DEGREES where a role has none. `ratios`: by mode, simulated ÷ closed
    form's highest rate."""

    shape: Shape
    mix: Mix
    gpus: int
    prefill_gpu: str
    decode_gpu: str
    network_gbps: float
    slo: Slo
    transport: Transport = "rdma"
    kv_dtype: str | None = None
    samples: int | None = None
    window_s: float | None = None
    source: str = "given"
    degrees: Mapping[Role, tuple[int, ...]] = field(default_factory=dict)
    ratios: Mapping[Mode, float] = field(default_factory=dict)
    near: Mapping[Mode, float] = field(default_factory=dict)
    """By mode, where the highest rate is looked for first."""

    @property
    def gbps(self) -> float:
        """That a transfer reaches."""
        return self.network_gbps * (TCP_SHARE if self.transport == "tcp" else 1.0)

    @cached_property
    def search(self) -> Search:
        kinds: dict[Role, str] = {"prefill": self.prefill_gpu, "decode": self.decode_gpu, "mixed": self.decode_gpu}
        pools = []
        for role, kind in kinds.items():
            degrees = self.degrees.get(role, DEGREES)
            pools.append(PoolNow(role, 1, degrees[0], kind, degrees=degrees))
        model = ModelNow(
            "offline",
            self.shape,
            "monolithic",
            tuple(pools),
            self.slo,
            kv_dtype=self.kv_dtype,
            network_gbps=self.gbps,
            max_num_seqs=MAX_NUM_SEQS,
            modes=MODES[1:],
        )
        return Search(model, self.mix, strict=True, most_gpus=self.gpus)

    def with_degrees(self, degrees: Mapping[Role, tuple[int, ...]]) -> Offline:
        """With only these tensor-parallel degrees to try; of roles that are left out as before."""
        return replace(self, degrees={**self.degrees, **degrees})

    @cached_property
    def situation(self) -> Situation:
        """Raises DoesNotFit when no engine can hold the model."""

        def of(value: float) -> Measured:
            return Measured(value, self.samples, self.window_s, source=self.source)

        mix = self.mix
        size = kvsize.transfer_bytes(self.shape, self.kv_dtype, max(1, round(mix.prompt_tokens)))
        return Situation(
            prompt_tokens=of(mix.prompt_tokens),
            output_tokens=of(mix.output_tokens),
            decode_share=replace(of(self._decode_share), source="computed: one engine at half load"),
            kv_bytes_per_request=of(size),
            prefix_hits=of(mix.prefix_hit_share),
            gpus=self.gpus,
            network_gbps=self.network_gbps,
            transport=self.transport,
        )

    @property
    def _decode_share(self) -> float:
        """Of a whole request's time on a half-loaded engine that serves nothing else than such requests."""
        options = self.search.options("mixed")
        if not options:
            raise DoesNotFit(self.misfit)
        best = max(options, key=lambda each: each.tensor_parallel)
        speed = self.search.speed(best.gpu, best.tensor_parallel)
        pool = half_loaded(speed, self.mix, local_cells(self.mix, "monolithic"))
        count = self.mix.count
        prefill_s = math.fsum(
            cell.requests / count * math.fsum(steps) for cell, steps in zip(self.mix.cells, speed.prompts_s, strict=True)
        )
        decode_s = pool.tpot_s * self.mix.output_tokens
        return decode_s / (decode_s + prefill_s)

    @property
    def misfit(self) -> str:
        """Why no engine can hold the model."""
        try:
            self.search.speed(self.decode_gpu, DEGREES[-1])
        except DoesNotFit as misfit:
            return str(misfit)
        return ""

    def best(self, mode: Mode) -> tuple[float, Layouted] | None:
        """The highest rate within the targets, and the layout that serves it; None if no rate does."""
        room = dict.fromkeys((self.prefill_gpu, self.decode_gpu), self.gpus)
        found = self._at(mode, LOWEST_RATE, room)
        if found is None:
            return None
        low, high = LOWEST_RATE, self.near.get(mode, 1.0)
        while (at_high := self._at(mode, high, room)) is not None:
            low, high, found = high, high * 2, at_high
        if low == LOWEST_RATE:
            while high > 2 * low and (at_half := self._at(mode, high / 2, room)) is None:
                high /= 2
            low, found = (high / 2, at_half) if at_half else (low, found)
        while high / low > PRECISION:
            middle = math.sqrt(low * high)
            at_middle = self._at(mode, middle, room)
            if at_middle is None:
                high = middle
            else:
                low, found = middle, at_middle
        return low, found

    def _at(self, mode: Mode, rate: float, room: dict[str, int]) -> Layouted | None:
        return min(
            self.search.smallest(mode, rate, room), key=lambda each: (each.estimate.gpus, each.estimate.strain), default=None
        )

    @cached_property
    def gain(self) -> Gain | None:
        """The closed form's, corrected by what a simulation gave for the present inputs."""
        return gain_of([self._told(mode) for mode in MODES[:2]])

    def _told(self, mode: Mode) -> ModeForecast:
        found = self.best(mode)
        rate = found[0] * self.ratios.get(mode, 1.0) if found else 0.0
        return ModeForecast(mode, "", rate, rate, rate)


def transfer_times(offline: Offline, tokens: int) -> dict[str, float]:
    """Bytes per token and per request, and seconds on the wire at 100, 400 and the given Gb/s."""
    size = kvsize.transfer_bytes(offline.shape, offline.kv_dtype, tokens)
    return {
        "kv_bytes_per_token": kvsize.transfer_bytes_per_token(offline.shape, offline.kv_dtype),
        "kv_bytes_per_request": size,
        "wire_ms_at_100_gbps": transfer_s(size, 100) * 1e3,
        "wire_ms_at_400_gbps": transfer_s(size, 400) * 1e3,
        "wire_ms": transfer_s(size, offline.gbps) * 1e3,
    }

"""What a forecast is asked for, checked: model, hardware, layouts, traffic, targets. The same for command, API and pages.

Everything here comes from outside. What cannot be is refused with ForecastRefused (or the error of the part that knows:
ConfigRefused, UnknownGpu), which names the field and the remedy. The limits keep a forecast's time and memory bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from controlplane.core import gpus as gpu_table
from controlplane.core import kvsize
from controlplane.core.calibration import CPU, Calibration
from controlplane.core.forecast import ForecastRefused, Settings
from controlplane.core.gpus import Gpu
from controlplane.core.layout import MAX_TENSOR_PARALLEL, Layout
from controlplane.core.protocol import Mode, Role, Slo
from controlplane.core.shapes import Shape
from controlplane.physics import checks
from controlplane.physics.phases import stored_shape
from controlplane.physics.traffic import MAX_TOKENS, Traffic
from controlplane.physics.workload import NO_LIMIT

Asked = Mode | Literal["compare"]
MODES: tuple[Asked, ...] = ("monolithic", "disaggregated", "conditional", "compare")
Saturate = Literal["steady", "p99"]
SATURATE: tuple[Saturate, ...] = ("steady", "p99")
MAX_NUM_SEQS = 1024
MAX_NUM_BATCHED_TOKENS = 8192
"""vLLM's own for a server on GPUs of 80 GB and more."""
MOST_SECONDS = 600.0

MAX_GPUS = 4096
MAX_SEEDS = 30
MAX_LAYOUTS = 8
MAX_GBPS = 1e6
MAX_MS = 1e9
MAX_PRICE = 1e6


@dataclass(frozen=True)
class Hardware:
    """GPUs to be split. A pool's own kind or degree wins over the common one; a degree that nobody gives is searched."""

    gpu: str = "h100-sxm"
    gpus: int = 8
    tp: int | None = None
    prefill_gpu: str | None = None
    decode_gpu: str | None = None
    prefill_tp: int | None = None
    decode_tp: int | None = None

    def __post_init__(self) -> None:
        checks.whole("gpus", self.gpus, 1, MAX_GPUS)
        for name in ("tp", "prefill_tp", "decode_tp"):
            degree = getattr(self, name)
            if degree is not None:
                checks.whole(name.replace("_", "-"), degree, 1, MAX_TENSOR_PARALLEL)
                if degree > self.gpus:
                    raise ForecastRefused(
                        f"{name.replace('_', '-')} {degree} needs {degree} GPUs for one engine, there are {self.gpus}"
                    )

    @property
    def kinds(self) -> tuple[str, str]:
        """Of prefill and of decode engines."""
        return self.prefill_gpu or self.gpu, self.decode_gpu or self.gpu

    def degree(self, role: Role) -> int | None:
        own = {"prefill": self.prefill_tp, "decode": self.decode_tp, "mixed": None}[role]
        return own or self.tp


@dataclass(frozen=True)
class ForecastRequest:
    """One question. `layouts`, if there are any, are simulated as they are, and `hardware` and `mode` are not looked at.

    `model` is the name for people, `config` the parsed config.json. `saturate`: the highest rate within `slo` instead of the
    traffic's own, `steady` when the means keep it (steady.py), `p99` when both p99s of a simulation do. `network_gbps`: of
    each engine, None for its GPU's own card. `prices`: US$ per GPU-hour by kind.
    """

    model: str
    config: Mapping[str, Any]
    traffic: Traffic
    slo: Slo = field(default_factory=Slo)
    hardware: Hardware = field(default_factory=Hardware)
    layouts: tuple[Layout, ...] = ()
    mode: Asked = "compare"
    seeds: int = 3
    saturate: Saturate | None = None
    network_gbps: float | None = None
    prefix_cached: int = 0
    """Leading tokens that all prompts share and every engine holds."""
    prices: Mapping[str, float] = field(default_factory=dict)
    weights: str = "auto"
    """Type of the weights, one of phases.WEIGHTS."""
    kv_dtype: str = "auto"
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    """By kind of GPU."""
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    most_seconds: float = MOST_SECONDS
    """That the forecast may take; what takes longer is refused."""

    def __post_init__(self) -> None:
        checks.one_of("mode", self.mode, MODES)
        if self.saturate is not None:
            checks.one_of("saturate", self.saturate, SATURATE)
        checks.whole("seeds", self.seeds, 1, MAX_SEEDS)
        kvsize.transfer_bytes_per_token(self.shape, self.kv_dtype)
        checks.positive("slo-ttft", self.slo.ttft_ms, MAX_MS, "ms")
        checks.positive("slo-itl", self.slo.itl_ms, MAX_MS, "ms")
        checks.whole("prefix-cached", self.prefix_cached, 0, MAX_TOKENS)
        checks.whole("max-num-seqs", self.max_num_seqs, 1, 1 << 16)
        checks.whole("max-num-batched-tokens", self.max_num_batched_tokens, 1, 1 << 20)
        if self.network_gbps is not None:
            checks.positive("network-gbps", self.network_gbps, MAX_GBPS, "Gb/s")
        self._check_layouts()
        self._check_prefix()
        for kind in (*self.kinds, *self.prices):
            self.gpu(kind)
        for kind, price in self.prices.items():
            checks.positive(f"price of {kind}", price, MAX_PRICE, "US$/h")
        self._check_length()

    @cached_property
    def shape(self) -> Shape:
        return stored_shape(self.config, self.weights)

    @property
    def settings(self) -> Settings:
        return Settings(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.traffic.block_tokens or Settings.block_size,
            network_gbps=self.network_gbps,
            kv_dtype=self.kv_dtype,
            kv_tokens=self.calibrations[CPU].kv_tokens if self.kinds == {CPU} else None,
            prefix_cached=self.prefix_cached,
            max_model_len=self.shape.max_positions or None,
        )

    @property
    def runs(self) -> int:
        """Simulations per layout: traffic that is the same for every seed needs one."""
        return self.seeds if self.traffic.random else 1

    def price(self, kind: str) -> float:
        """US$ per GPU-hour."""
        return self.prices.get(kind, self.gpu(kind).price_per_hour)

    def gpu(self, kind: str) -> Gpu:
        """The kind as its calibration has it, else as in the GPU table. Raises UnknownGpu."""
        calibration = self.calibrations.get(kind)
        return calibration.calibrated_gpu() if calibration else gpu_table.gpu(kind)

    @property
    def kinds(self) -> set[str]:
        """Kinds of GPU that engines may have."""
        if self.layouts:
            return {pool.gpu for layout in self.layouts for pool in layout.pools}
        return set(self.hardware.kinds)

    @property
    def every_price(self) -> dict[str, float]:
        """US$ per GPU-hour of every kind."""
        return {kind: self.price(kind) for kind in (*gpu_table.GPUS, *self.calibrations)}

    @property
    def most_tokens(self) -> int:
        """Of a prompt with its answer."""
        return self.shape.max_positions or NO_LIMIT

    def _check_length(self) -> None:
        mean = self.traffic.prompt_tokens + self.traffic.output_tokens
        if mean > self.most_tokens:
            raise ForecastRefused(
                f"prompt and answer have {mean:,.0f} tokens on average, more than the model's {self.most_tokens:,}"
            )

    def _check_layouts(self) -> None:
        if len(self.layouts) > MAX_LAYOUTS:
            raise ForecastRefused(f"at most {MAX_LAYOUTS} layouts are compared at once, got {len(self.layouts)}")
        for layout in self.layouts:
            if layout.gpus > MAX_GPUS:
                raise ForecastRefused(f"layout {layout.text} has {layout.gpus:,} GPUs, more than {MAX_GPUS:,}")

    def _check_prefix(self) -> None:
        if not self.prefix_cached:
            return
        if self.traffic.block_tokens:
            raise ForecastRefused("prefix-cached cannot be combined with a trace that names its prefixes; leave it out")
        if self.prefix_cached >= self.traffic.prompt_tokens:
            raise ForecastRefused(
                f"prefix-cached must be less than the prompt ({self.traffic.prompt_tokens:,.0f} tokens on average), "
                f"got {self.prefix_cached:,}"
            )

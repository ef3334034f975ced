"""What goes into the forecast's event simulation and what comes out of it. Pure data; times in seconds, sizes in tokens.

Used through `core.forecast`, which exports these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from controlplane.core.forecast_gaps import Gaps
from controlplane.core.perf import PhaseModel
from controlplane.core.protocol import Conditional, Mode, Role

ServedPath = Literal["whole", "split"]
"""One engine did everything, or a prefill leg and a decode leg."""

Progress = Callable[[float], None]
"""Told the share (0..1) of arrivals that are through, about a hundred times. Whatever it raises ends the simulation."""


MOST_TOKENS = 100_000_000
"""More than any engine holds; larger numbers are slips, and the exact path keeps a list of all blocks."""


class ForecastRefused(ValueError):
    """The simulation cannot be run like this; the message names the remedy."""


class TooLoose(ForecastRefused):
    """The targets hold at every rate that a simulation of bounded length can tell from a higher one."""


class Arrival(NamedTuple):
    """One request. `prefix`: ids of its leading full blocks of `Settings.block_size` tokens, each chained to the one before
    it (equal ids mean equal text from the start on). `session`: breaks ties between engines; 0 is no session."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    session: int = 0


@dataclass(frozen=True)
class Settings:
    """How the engines are run. Raises ForecastRefused for values that cannot be."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    """Tokens of a KV block, and of each id in `Arrival.prefix` (512 for Mooncake's traces)."""
    memory_utilization: float = 0.9
    network_gbps: float | None = None
    """Of each engine, in each direction, for KV transfers. None: its kind of GPU's own."""
    kv_dtype: str | None = None
    prefix_cached: int = 0
    """Leading tokens that all prompts share and every engine already holds, once: they are neither computed nor moved, but
    attention reads them. Not together with `Arrival.prefix`."""
    prefix_caching: bool = True
    conditional: Conditional = field(default_factory=Conditional)
    kv_tokens: int | None = None
    """KV cache of each engine, in tokens. None: what fits beside the weights."""
    max_model_len: int | None = None
    """Longest prompt and answer together that is taken. None: whatever fits the KV cache."""
    horizon_s: float | None = None
    """Stop at this time; what is not through then is counted as unfinished. None: go on until all are through."""
    exact: bool = False
    """Every step through `core.batching`, as the simulated engine does; otherwise equal decode steps are merged."""

    def __post_init__(self) -> None:
        for name, least in (("max_num_seqs", 1), ("max_num_batched_tokens", 1), ("block_size", 1), ("prefix_cached", 0)):
            _check_whole(name, getattr(self, name), least)
        for name in ("kv_tokens", "max_model_len"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 2)
        for name in ("network_gbps", "horizon_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ForecastRefused(f"{name} must be a positive number, got {value}")
        if not 0 < self.memory_utilization <= 1:
            raise ForecastRefused(f"memory_utilization must lie above 0 and at most at 1, got {self.memory_utilization}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ForecastRefused(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below max_num_seqs "
                f"({self.max_num_seqs}), as vLLM demands: raise the first or lower the second"
            )


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or not least <= value <= MOST_TOKENS:
        raise ForecastRefused(f"{name} must be a whole number from {least} to {MOST_TOKENS:,}, got {value}")


@dataclass(frozen=True)
class Pool:
    """Equal engines of one role. A role may have several pools, of different hardware."""

    role: Role
    engines: int
    model: PhaseModel
    network_gbps: float | None = None
    """Of each engine, in each direction; None: `Settings.network_gbps`, or else the GPU's own."""

    @property
    def gpus(self) -> int:
        return self.engines * self.model.tensor_parallel

    @property
    def name(self) -> str:
        """As a layout writes it: 12xTP2@h100-sxm."""
        return f"{self.engines}xTP{self.model.tensor_parallel}@{self.model.gpu.name}"


class Served(NamedTuple):
    """One finished request. Its stages add up to `ttft_s`: queue_s + prefill_s + transfer_s + decode_queue_s + first_step_s
    (a whole request has the first two only)."""

    number: int
    """Its place among the arrivals."""
    path: ServedPath
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that the engine which computed the prompt found in its prefix cache."""
    ttft_s: float
    e2e_s: float
    queue_s: float
    """Until its first engine began with it."""
    prefill_s: float
    """From there to that engine's first token, steps of others in between included."""
    transfer_s: float = 0.0
    decode_queue_s: float = 0.0
    """Until the decode engine had room for its KV, and from its arrival there until a step took it."""
    first_step_s: float = 0.0
    """The decode engine computes the last prompt token again to give the first token."""
    preemptions: int = 0

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for an answer of one token."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass
class PoolTotals:
    """What the engines of one pool did, added up over them. `*_busy_s` are GPU activity × seconds of one GPU of each engine:
    divided by `engines` × time they are the mean activity of the pool's GPUs."""

    pool: Pool
    kv_capacity_tokens: int
    """Of each engine."""
    step_s: float = 0.0
    """Time in which steps ran."""
    steps: int = 0
    tensor_busy_s: float = 0.0
    dram_busy_s: float = 0.0
    busy_s: float = 0.0
    """Of max(tensor, DRAM): the busy share behind effective GPUs."""
    tensor_peak: float = 0.0
    """Highest tensor activity inside the kernels of a step."""
    dram_peak: float = 0.0
    """Highest DRAM activity of a step."""
    prompt_tokens: int = 0
    """Of prompts begun here (recomputed ones not again)."""
    cached_tokens: int = 0
    """Of those, found in the prefix cache."""
    output_tokens: int = 0
    """Sampled here, a prefill engine's first tokens included."""
    preemptions: int = 0
    transfers: int = 0
    """Into this pool."""
    transfer_bytes: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One simulation. finished + refused + unfinished = arrived."""

    mode: Mode
    settings: Settings
    pools: tuple[PoolTotals, ...]
    arrived: int
    served: tuple[Served, ...]
    """In the order in which they finished."""
    refused: Mapping[str, int]
    """Reason → requests that no engine could ever serve."""
    unfinished: int
    """Still open at the horizon."""
    gaps: Gaps
    """Times between neighbouring tokens of an answer, all answers together."""
    span_s: float
    """From the first arrival to the end of the last request (or to the horizon)."""

    @property
    def gpus(self) -> int:
        return sum(totals.pool.gpus for totals in self.pools)

    @property
    def output_tokens(self) -> int:
        """Of finished requests."""
        return sum(request.output_tokens for request in self.served)

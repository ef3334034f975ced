"""What the planner is told and what it answers. Pure data; times in seconds since the epoch, latencies in milliseconds.

Used through `core.planner`, which exports these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.core.protocol import Mode, Role, Slo
from controlplane.core.shapes import Shape
from controlplane.core.workload import Mix, Observed, Window

Level = Literal["off", "advise", "approve", "automatic"]
LEVELS: tuple[Level, ...] = ("off", "advise", "approve", "automatic")
Cause = Literal["slo", "growth", "mix", "mode", "idle", "schedule", "trade", "give_back"]
"""Why a proposal is made: a target is (or will be) missed; load grows; the split does not suit the mix; another mode serves
the same better; GPUs are not needed; a known peak; GPUs from a lower priority; and those given back."""
HoldCode = Literal[
    "off",
    "stale",
    "empty",
    "few_samples",
    "warming",
    "operation",
    "manual",
    "cooldown",
    "budget",
    "freeze",
    "window",
    "floor",
    "ceiling",
    "consolidation",
    "hysteresis",
    "infeasible",
    "no_gpus",
    "no_hardware",
    "good",
]


@dataclass(frozen=True)
class PoolNow:
    """One pool as desired now. `kinds` and `degrees`: GPU kinds and tensor-parallel degrees that its operator allows (at
    least its own). `floor`, `ceiling`: engines that a plan leaves in it at least and at most."""

    role: Role
    engines: int
    tensor_parallel: int
    gpu: str
    kinds: tuple[str, ...] = ()
    degrees: tuple[int, ...] = ()
    floor: int = 1
    ceiling: int | None = None

    @property
    def gpus(self) -> int:
        return self.engines * self.tensor_parallel


@dataclass(frozen=True)
class Manual:
    """A person changed the pools or the mode themselves: it is adopted as the present plan."""

    at_s: float
    by: str
    reason: str = ""


@dataclass(frozen=True)
class Peak:
    """A load that is known to come: from `since_s` to `until_s` at least `rate` requests/s of the usual mix. `daily`: the
    times are seconds of the (UTC) day, every day; else since the epoch."""

    since_s: float
    until_s: float
    rate: float
    daily: bool = False
    why: str = ""


@dataclass(frozen=True)
class Span:
    """A time in which plans may act (change windows) or may not (freezes). `daily` as in Peak; it may run over midnight."""

    since_s: float
    until_s: float
    daily: bool = False
    why: str = ""


@dataclass(frozen=True)
class Guards:
    """Limits of one model's plans."""

    stale_s: float = 60.0
    """Metrics older than this hold."""
    min_samples: int = 50
    """Requests in the last windows, below which load is not judged (an idle model's is)."""
    cooldown_s: float = 600.0
    """After the last change of the model."""
    manual_s: float = 3600.0
    """A person's change is kept at least so long, unless a target is missed."""
    moves_per_hour: int = 6
    """Engines that change role or GPU, are started or stopped, per hour and model."""
    hysteresis: float = 0.1
    """A change that is not needed for a target must better the cost or the strain by this share."""
    headroom: float = 0.15
    """Added to predicted load when engines are sized."""
    give_up: bool = True
    """GPUs that are not needed are given up. False: the model keeps all it has, only their split and the mode change."""
    idle_s: float = 900.0
    """A model to which nothing came for so long is idle; what was lent to one that has traffic is kept at least so long."""
    horizon_s: float = 900.0
    """How far ahead load is predicted: an engine must be up by then."""
    slots: tuple[Span, ...] = ()
    """Change windows; empty: always."""
    freezes: tuple[Span, ...] = ()
    lifetime_s: float = 900.0
    """A proposal that nobody decided on is void after so long."""


@dataclass(frozen=True)
class Lent:
    """GPUs that another model gave up for this one (or this one for another), to be given back."""

    proposal: str
    giver: str
    taker: str
    role: Role
    """Of the giver's pool."""
    engines: int
    """Of the giver."""
    at_s: float


@dataclass(frozen=True)
class ModelNow:
    """One model as the planner sees it. `windows`: the newest last, of equal length, older ones for the season. `observed`:
    newest last. `metrics_at_s`: of the newest complete telemetry."""

    name: str
    shape: Shape
    mode: Mode
    pools: tuple[PoolNow, ...]
    slo: Slo
    level: Level = "advise"
    priority: int = 0
    """More is more important; GPUs are taken from lower ones only."""
    modes: tuple[Mode, ...] = ()
    """Modes the owner allows; empty: only the present one."""
    windows: tuple[Window, ...] = ()
    observed: tuple[Observed, ...] = ()
    metrics_at_s: float | None = None
    warming: int = 0
    """Engines that are wanted and not ready yet."""
    operation: str | None = None
    """What runs on the model now, in words."""
    changed_at_s: float | None = None
    """Its last change, by whomever."""
    moved_at_s: tuple[float, ...] = ()
    """Engine moves of the last hour, one time each."""
    manual: Manual | None = None
    peaks: tuple[Peak, ...] = ()
    guards: Guards = field(default_factory=Guards)
    kv_dtype: str | None = None
    network_gbps: float | None = None
    """Of each engine; None: its GPU's own card."""
    max_num_seqs: int = 256
    obstacle: str | None = None
    """Why it cannot be planned for at all (pipeline stages, no config), in words."""


@dataclass(frozen=True)
class FleetNow:
    """`spare`: GPUs by kind that no engine holds and that may be used. `prices`: US$ per GPU-hour by kind."""

    models: tuple[ModelNow, ...]
    spare: Mapping[str, int] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    lent: tuple[Lent, ...] = ()


@dataclass(frozen=True)
class PoolPlan:
    """One pool as it should be."""

    role: Role
    engines: int
    tensor_parallel: int
    gpu: str

    @property
    def gpus(self) -> int:
        return self.engines * self.tensor_parallel

    @property
    def text(self) -> str:
        """As a layout writes it."""
        return f"{self.engines}xTP{self.tensor_parallel}@{self.gpu}"


@dataclass(frozen=True)
class Estimate:
    """What a layout gives at a load. Infinite latencies: it cannot keep up. `attained`: share of requests within both
    targets; `strain`: the larger of p99 TTFT and ITL over its target (1 = just kept); `busy`: share of the time that the
    busier pool works."""

    ttft_p99_ms: float
    itl_p99_ms: float
    attained: float
    strain: float
    busy: float
    bottleneck: Role
    gpus: int
    cost_per_hour: float
    cost_per_million_tokens: float | None
    error: float = 0.2
    """Half the width of the interval of the latencies, relative: from the running accuracy, else the model's own."""


@dataclass(frozen=True)
class Alternative:
    """Another layout that was looked at, and why it is not the one."""

    mode: Mode
    pools: tuple[PoolPlan, ...]
    estimate: Estimate
    why_not: str


@dataclass(frozen=True)
class Inputs:
    """What a proposal was made from, kept with it."""

    at_s: float
    rate: float
    """Arrivals/s of the last windows."""
    expected_rate: float
    """Predicted for the horizon, headroom not added."""
    expected_low: float
    expected_high: float
    mix: Mix
    burst: float
    samples: int
    window_s: float
    prefill_correction: float
    decode_correction: float
    ttft_p99_ms: float | None
    itl_p99_ms: float | None
    peak: str | None = None


@dataclass(frozen=True)
class Proposal:
    """A change of one model. `id` is the same for the same change of the same state, so that ticks do not pile them up.
    `reasons`: one plain sentence each, the weightiest first. `takes`: engines that other models give up for it."""

    id: str
    model: str
    cause: Cause
    mode_before: Mode
    mode: Mode
    before: tuple[PoolPlan, ...]
    pools: tuple[PoolPlan, ...]
    moves: int
    """Engines that change role, start or stop."""
    now: Estimate
    then: Estimate
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    inputs: Inputs
    expires_at_s: float
    takes: tuple[Lent, ...] = ()
    gives_back: tuple[Lent, ...] = ()
    giver_now: Estimate | None = None
    giver_then: Estimate | None = None
    giver_pools: tuple[PoolPlan, ...] = ()
    """Of the (first) giver, after it."""

    @property
    def title(self) -> str:
        """In one line: what becomes of the pools."""
        mode = "" if self.mode == self.mode_before else f"{self.mode_before} → {self.mode}: "
        return f"{mode}{_texts(self.before)} → {_texts(self.pools)}"


@dataclass(frozen=True)
class Hold:
    """Why nothing is proposed for a model now. `infeasible` and `no_gpus` are for people to look at."""

    model: str
    code: HoldCode
    reason: str
    now: Estimate | None = None
    inputs: Inputs | None = None


@dataclass(frozen=True)
class Decision:
    """One tick. Every model of the fleet is in exactly one of both."""

    at_s: float
    proposals: tuple[Proposal, ...]
    holds: tuple[Hold, ...]


@dataclass(frozen=True)
class Outcome:
    """A proposal that was carried out, beside what came: for the planner's running accuracy."""

    proposal: str
    predicted_ttft_p99_ms: float
    predicted_itl_p99_ms: float
    actual_ttft_p99_ms: float | None
    actual_itl_p99_ms: float | None


@dataclass(frozen=True)
class Accuracy:
    """Of a model's carried-out proposals: |predicted ÷ actual − 1|, median; None with fewer than 3."""

    proposals: int
    ttft: float | None
    itl: float | None


def _texts(pools: tuple[PoolPlan, ...]) -> str:
    return " + ".join(pool.text for pool in pools)

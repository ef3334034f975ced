"""What the advisor is told and what it answers. Pure data. Used through `core.advisor`, which exports these names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from controlplane.core.protocol import Mode

Transport = Literal["rdma", "tcp"]
TRANSPORTS: tuple[Transport, ...] = ("rdma", "tcp")
Verdict = Literal["yes", "no", "not_enough_data", "try_canary"]
State = Literal["pass", "fail", "unknown"]
CheckName = Literal["decode_share", "kv_network", "prefix_hits", "gpus", "transport", "short_prompts"]


@dataclass(frozen=True)
class Measured:
    """A figure and where it comes from. `value` None: not known. `samples` and `window_s` None: somebody gave it, or it was
    counted; `deviation`: standard deviation of one sample, None: taken to be as large as the value itself."""

    value: float | None
    samples: int | None = None
    window_s: float | None = None
    deviation: float | None = None
    source: str = "given"

    def confidence(self, threshold: float) -> float | None:
        """How sure it is that the true mean lies on this side of `threshold`, 0.5 to 1; None where nothing was sampled."""
        if self.value is None or not self.samples:
            return None
        error = (abs(self.value) if self.deviation is None else self.deviation) / math.sqrt(self.samples)
        distance = abs(self.value - threshold)
        return 1.0 if not error else 0.5 * (1 + math.erf(distance / error / math.sqrt(2)))


@dataclass(frozen=True)
class Situation:
    """A model's traffic and hardware. Shares 0..1. `decode_share`: of a request's time; `prefix_hits`: of a prompt's KV that
    is on the decode side already; `network_gbps`: between the engines of a handoff."""

    prompt_tokens: Measured
    output_tokens: Measured
    decode_share: Measured
    kv_bytes_per_request: Measured
    prefix_hits: Measured
    gpus: int
    network_gbps: float
    transport: Transport = "rdma"


@dataclass(frozen=True)
class Check:
    """`value` and `threshold` as numbers of `unit` (share, bytes, tokens, gpus, transport 1 = RDMA) and as text for people;
    `confidence` 0.5..1, None where nothing was sampled. `sentence`: what it means, one plain sentence."""

    name: CheckName
    title: str
    state: State
    value: float | None
    threshold: float
    unit: str
    value_text: str
    threshold_text: str
    sentence: str
    source: str
    window_s: float | None = None
    samples: int | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class ModeForecast:
    """What one mode would do with the same GPUs and traffic. `requests_per_second`: the highest rate within the SLO, with
    the 95% interval of the simulation's seeds (equal to the value with one); latencies at `at_rate` requests/s."""

    mode: Mode
    layout: str
    requests_per_second: float
    low: float
    high: float
    at_rate: float | None = None
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    attained: float | None = None
    """Share of requests within both targets at that rate."""
    cost_per_million_tokens: float | None = None
    """US$ per million output tokens at the highest rate within the SLO."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gain:
    """What `mode` serves within the SLO more than monolithic serving on the same GPUs: +0.24 is 24% more. `low` and `high`
    hold the simulation's interval and the model's own error. Infinite: monolithic serving keeps the targets at no rate."""

    mode: Mode
    ratio: float
    low: float
    high: float
    sentence: str

    @property
    def reachable(self) -> bool:
        """Whether any mode keeps the targets at some rate."""
        return any((self.ratio, self.low, self.high))


@dataclass(frozen=True)
class Flip:
    """The nearest value of one input at which the verdict is another, all else as it is."""

    input: str
    now: str
    at: str
    value: float | str
    """`at` as a number, or a transport."""
    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class Knob:
    """One input that may be turned: from `low` to `high`, whole numbers only if `whole`. `at` gives the situation at another
    value, and how to get the gain (None: not known), which may take a while. `choices`: instead of a range."""

    name: str
    now: float | str
    low: float
    high: float
    at: Callable[[Any], tuple[Situation, Callable[[], Gain | None]]]
    text: Callable[[Any], str]
    whole: bool = True
    choices: tuple[str, ...] = ()
    step: float = 1.05
    """Values are tried this far apart, relative; between two of them the flip is found by halving."""


@dataclass(frozen=True)
class Advice:
    """`mode` is the one to run. `sentence`: the verdict and its weightiest reason, one plain sentence."""

    verdict: Verdict
    mode: Mode
    sentence: str
    checks: tuple[Check, ...]
    forecasts: tuple[ModeForecast, ...]
    gain: Gain | None
    flips: tuple[Flip, ...]

"""A layout that a search found, and the search's answer as a document. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from controlplane.core.comparison import Conventions, Lengths
from controlplane.core.layout import Layout
from controlplane.core.protocol import Mode
from controlplane.core.splitengines import Limits, Refusal

Objective = Literal["throughput", "cost"]
"""Most tokens/s on N GPUs, or least cost per token."""


class NoLayout(ValueError):
    """No layout of either mode keeps the limits; the message says what is missing in each."""


@dataclass(frozen=True)
class Plan:
    """A layout, and what it gives."""

    layout: Layout
    batches: tuple[int, ...]
    """Requests that one engine holds, per pool."""
    chunk: int
    """Prompt tokens of a mixed step; 0 with two pools."""
    ttft_s: float
    tpot_s: float
    requests_per_second: float
    tokens_per_second: float
    """Output tokens of all engines, as AIConfigurator counts them: one pool without an answer's first token, two with it."""
    dollars_per_hour: float
    """Of the GPUs it uses."""

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Per GPU it uses."""
        return self.tokens_per_second / self.layout.gpus

    @property
    def dollars_per_million_tokens(self) -> float:
        return self.dollars_per_hour / (self.tokens_per_second * 3600) * 1e6

    @property
    def prefill_share(self) -> float:
        """Share of its GPUs in the prefill pool; 0 with one pool."""
        return sum(pool.gpus for pool in self.layout.pools if pool.role == "prefill") / self.layout.gpus

    def document(self) -> dict[str, Any]:
        return {
            "layout": self.layout.text,
            "mode": self.layout.mode,
            "gpus": self.layout.gpus,
            "pools": [
                {
                    "role": pool.role,
                    "engines": pool.engines,
                    "tensor_parallel": pool.tensor_parallel,
                    "gpu": pool.gpu,
                    "batch": batch,
                }
                for pool, batch in zip(self.layout.pools, self.batches, strict=True)
            ],
            "chunk": self.chunk,
            "ttft_ms": self.ttft_s * 1000,
            "tpot_ms": self.tpot_s * 1000,
            "requests_per_second": self.requests_per_second,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "cost_per_million_tokens": self.dollars_per_million_tokens,
            "prefill_gpu_share": self.prefill_share,
        }


@dataclass(frozen=True)
class SearchResult:
    """`aggregated` and `disaggregated` are the best layouts of each mode, best first; one may be empty, `missing` then says
    why. `ratio`: the best split / the best single pool, in tokens/s or in tokens per dollar; None without both."""

    winner: Mode
    ratio: float | None
    objective: Objective
    aggregated: tuple[Plan, ...]
    disaggregated: tuple[Plan, ...]
    missing: Mapping[str, str]
    refused: tuple[Refusal, ...]
    evaluated: Mapping[str, int]
    gpus: int
    lengths: Lengths
    limits: Limits
    conventions: Conventions
    guesses: tuple[str, ...]
    """Why times are a guess (core/perf); empty: calibrated."""
    guessed_prices: bool

    @property
    def best(self) -> Plan:
        return (self.aggregated if self.winner == "monolithic" else self.disaggregated)[0]

    @property
    def prefill_share(self) -> float | None:
        """Of the best split; None without one."""
        return self.disaggregated[0].prefill_share if self.disaggregated else None

    def document(self) -> dict[str, Any]:
        """Stable keys, for JSON."""
        return {
            "winner": self.winner,
            "ratio": self.ratio,
            "objective": self.objective,
            "prefill_gpu_share": self.prefill_share,
            "gpus": self.gpus,
            "lengths": {"input": self.lengths.prompt, "output": self.lengths.output, "cached": self.lengths.cached},
            "slo": {"ttft_ms": self.limits.ttft_s * 1000, "tpot_ms": self.limits.tpot_s * 1000},
            "aggregated": [plan.document() for plan in self.aggregated],
            "disaggregated": [plan.document() for plan in self.disaggregated],
            "missing": dict(self.missing),
            "refused": [
                {
                    "role": refusal.role,
                    "gpu": refusal.gpu,
                    "tensor_parallel": refusal.tensor_parallel,
                    "limit": refusal.limit,
                    "count": refusal.count,
                    "reason": refusal.reason,
                }
                for refusal in self.refused
            ],
            "evaluated": dict(self.evaluated),
            "conventions": {"backend": self.conventions.backend, **self.conventions.factors},
            "guesses": list(self.guesses),
            "guessed_prices": self.guessed_prices,
        }

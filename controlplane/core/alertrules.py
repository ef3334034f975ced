"""The rules there are, with their defaults, bounds and remedies; what an alert says in words; and how fast an error budget
burns. Pure. Meanings and remedies in full: docs/alerts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.core.alerts import Setting, Severity

Unit = Literal["times", "ms", "share", "engines", "s", "starts"]
About = Literal["model", "pool", "node", "engine", "fleet"]

BUDGET = 0.01
"""The SLO is on p99: one in a hundred may be slower or fail."""
LEAST_REQUESTS = 10
"""Fewer are judged as if they were so many: one slow request of two is no outage."""
LEAST_TRANSFERS = 100
MAX_DURATION_S = 86_400.0
LEAST_CLEAR_S = 10.0


@dataclass(frozen=True)
class Rule:
    """`threshold` may be set from `low` to `high`. `band`: an alert clears at `threshold * band`, or at the threshold itself
    where too little is bad. `of_models`: each model may have settings of its own."""

    title: str
    about: About
    unit: Unit
    threshold: float
    low: float
    high: float
    for_s: float
    clear_s: float
    severity: Severity
    remedy: str
    above: bool = True
    band: float = 0.9
    of_models: bool = True

    def setting(
        self,
        threshold: float | None = None,
        for_s: float | None = None,
        clear_s: float | None = None,
        severity: Severity | None = None,
        enabled: bool | None = None,
    ) -> Setting:
        """With what is not given by default."""
        limit = self.threshold if threshold is None else threshold
        return Setting(
            threshold=limit,
            clear_at=limit * self.band if self.above else limit,
            for_s=self.for_s if for_s is None else for_s,
            clear_s=self.clear_s if clear_s is None else clear_s,
            severity=severity or self.severity,
            above=self.above,
            enabled=True if enabled is None else enabled,
        )


RULES: Mapping[str, Rule] = {
    "slo_burn_fast": Rule(
        title="SLO burns fast",
        about="model",
        unit="times",
        threshold=14.4,
        low=1.0,
        high=100.0,
        for_s=0.0,
        clear_s=300.0,
        severity="bad",
        remedy="Compare the model's pools: move GPUs to the one that waits, or take back a change of mode.",
    ),
    "slo_burn_slow": Rule(
        title="SLO burns slowly",
        about="model",
        unit="times",
        threshold=6.0,
        low=1.0,
        high=100.0,
        for_s=0.0,
        clear_s=900.0,
        severity="warn",
        remedy="Rebalance the pools or add engines before the budget is gone.",
    ),
    "transfer_p99": Rule(
        title="KV transfers are slow",
        about="model",
        unit="ms",
        threshold=500.0,
        low=1.0,
        high=60_000.0,
        for_s=120.0,
        clear_s=300.0,
        severity="warn",
        remedy="Look at the pair matrix: one slow pair is a link, all pairs are the network or too much moved at once.",
    ),
    "transfer_failures": Rule(
        title="KV transfers fail",
        about="model",
        unit="share",
        threshold=0.01,
        low=0.0,
        high=1.0,
        for_s=60.0,
        clear_s=300.0,
        severity="bad",
        remedy="Read the decode engines' logs; hold an engine that fails alone, else switch the model to monolithic.",
    ),
    "pool_empty": Rule(
        title="A pool has too few engines",
        about="pool",
        unit="engines",
        threshold=1.0,
        low=1.0,
        high=10_000.0,
        for_s=20.0,
        clear_s=30.0,
        severity="bad",
        remedy="See why its engines do not serve (page of the engine, its log); give the pool GPUs from another one.",
        above=False,
    ),
    "node_lost": Rule(
        title="A node is silent",
        about="node",
        unit="s",
        threshold=30.0,
        low=10.0,
        high=86_400.0,
        for_s=0.0,
        clear_s=30.0,
        severity="bad",
        remedy="See whether the machine and its agent run and reach Valkey; remove_node if it will not come back.",
        of_models=False,
    ),
    "stale_metrics": Rule(
        title="Metrics are stale",
        about="fleet",
        unit="s",
        threshold=120.0,
        low=90.0,
        high=86_400.0,
        for_s=30.0,
        clear_s=60.0,
        severity="warn",
        remedy="See whether ingest runs and PostgreSQL and Valkey answer; of a node or of routers: whether they run.",
        of_models=False,
    ),
    "crash_loop": Rule(
        title="An engine crashes again and again",
        about="engine",
        unit="starts",
        threshold=2.0,
        low=1.0,
        high=1000.0,
        for_s=0.0,
        clear_s=600.0,
        severity="bad",
        remedy="Read the end of its log; take back the last change of the model's arguments or version.",
        band=0.5,
    ),
    "stranded_kv": Rule(
        title="KV is stranded",
        about="engine",
        unit="share",
        threshold=0.05,
        low=0.0,
        high=1.0,
        for_s=180.0,
        clear_s=60.0,
        severity="warn",
        remedy="Nobody will fetch it: restart the engine; if it comes again, look for decode engines that vanish.",
        band=0.5,
    ),
    "pool_imbalance": Rule(
        title="The pools of a model are out of balance",
        about="model",
        unit="share",
        threshold=0.5,
        low=0.05,
        high=1.0,
        for_s=900.0,
        clear_s=600.0,
        severity="warn",
        remedy="Open the rebalance page: it proposes a split and forecasts it.",
        band=0.8,
    ),
    "engine_imbalance": Rule(
        title="One engine of a pool has most of its load",
        about="pool",
        unit="times",
        threshold=1.75,
        low=1.05,
        high=100.0,
        for_s=600.0,
        clear_s=300.0,
        severity="warn",
        remedy="Look at its GPUs and prefix hits: a slow engine holds its requests longer, a hot prefix draws them.",
    ),
}
"""Thresholds of burn rates: 14.4 over 5 min and 1 h spends 2% of a 30-day budget in an hour, 6 over 30 min and 6 h 5% in six
(Google, The Site Reliability Workbook, chapter 5)."""


def burn(bad: float, total: float) -> float:
    """How many times faster than allowed the error budget is spent."""
    return bad / max(total, LEAST_REQUESTS) / BUDGET


def failure_share(failed: float, tried: float) -> float:
    """Of KV transfers."""
    return failed / max(tried, LEAST_TRANSFERS)


def quantity(value: float | None, unit: Unit) -> str:
    """A value with its unit, for texts that are not translated."""
    if value is None:
        return "unknown"
    match unit:
        case "times":
            return f"{value:.3g}x"
        case "ms":
            return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"
        case "share":
            return f"{value * 100:.3g}%"
        case "s":
            return f"{value:.0f} s"
        case "engines" | "starts":
            return f"{value:.0f} {unit}"


def summary(rule: str, label: str, value: float | None, threshold: float) -> str:
    """One English line: what, of what, how much, and the limit."""
    known = RULES.get(rule)
    if known is None:
        return f"{rule}: {label}"
    side = "limit" if known.above else "at least"
    return f"{known.title}: {label}: {quantity(value, known.unit)} ({side} {quantity(threshold, known.unit)})"

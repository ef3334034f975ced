"""What rules about traffic and load look at: telemetry, by way of its queries. A figure that is stale or missing is "not
known", never good. Reads only; all raise django.db.Error."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.control.alerting.observe_fleet import Fleet, label_of
from controlplane.core.alertrules import burn, failure_share
from controlplane.core.alerts import Observation
from controlplane.telemetry.queries.budgets import Limits, Spent, spent
from controlplane.telemetry.queries.engines import engine_figures
from controlplane.telemetry.queries.figures import Figure
from controlplane.telemetry.queries.freshness import newest_of_nodes, newest_of_routers
from controlplane.telemetry.queries.kv_results import TransferFigures
from controlplane.telemetry.queries.pools import pool_figures
from controlplane.telemetry.queries.results import EngineFigures, PoolFigures
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.transfers import transfer_figures
from controlplane.telemetry.queries.windows import Window

FAST_S = (300.0, 3600.0)
SLOW_S = (1800.0, 21_600.0)
TRANSFERS_S = 300.0
LOAD_S = 300.0
BALANCE_S = 600.0
IDLE_S = 60.0
LEAST_TRANSFERS = 10
"""Of fewer a p99 says nothing."""
LEAST_LOAD = 1.0
"""Requests per engine; below there is nothing to balance."""


def burns(fleet: Fleet, spans_s: tuple[float, float]) -> list[Observation]:
    """How fast each model's error budget burns: of TTFT or ITL, the worse; over a short and a long window, the slower (so it
    ends soon after the trouble does)."""
    limits = {name: Limits(row.slo_ttft_ms, row.slo_itl_ms) for name, row in fleet.by_name.items()}
    if not limits:
        return []
    short, long = (spent(Window.last(span_s, fleet.now), limits) for span_s in spans_s)
    return [_burn(name, short.get(name), long.get(name)) for name in limits]


def _burn(model: str, short: Spent | None, long: Spent | None) -> Observation:
    subject, label = f"model:{model}", f"model {model}"
    if short is None or long is None or short.stale:
        return Observation(subject, None, model, label)
    ttft = min(burn(each.slow, each.requests) for each in (short, long))
    itl = min(burn(each.slow_gaps, each.gaps) for each in (short, long))
    facts = {
        "of": "ttft" if ttft >= itl else "itl",
        "requests": round(short.requests),
        "slow": round(short.slow),
        "gaps": round(short.gaps),
        "slow_gaps": round(short.slow_gaps),
    }
    return Observation(subject, max(ttft, itl), model, label, facts)


class Transfers:
    """Of all models that move KV, over five minutes: read once for two rules."""

    def __init__(self, fleet: Fleet) -> None:
        window = Window.last(TRANSFERS_S, fleet.now)
        self._moving = transfer_figures(window)
        self._heard = {pool.model for pool in pool_figures(window) if not pool.engines.stale}
        self._models = [name for name, row in fleet.by_name.items() if row.connector != "none"]

    def p99(self) -> list[Observation]:
        """Of the slowest pool, in ms; 0 where nothing was moved."""
        return [self._observe(model, self._p99(pools), pools) for model, pools in self._by_model()]

    def failures(self) -> list[Observation]:
        """Failed transfers and KV that nobody fetched in time, by all that were tried."""
        return [self._observe(model, self._failed(pools), pools) for model, pools in self._by_model()]

    def _by_model(self) -> list[tuple[str, list[TransferFigures]]]:
        return [(model, [pool for pool in self._moving if pool.model == model]) for model in self._models]

    def _observe(self, model: str, value: float | None, pools: Sequence[TransferFigures]) -> Observation:
        facts = {
            "transfers": round(sum(pool.transfers.value or 0 for pool in pools)),
            "failed": round(sum(pool.failed.value or 0 for pool in pools)),
            "expired": round(sum(pool.leases_expired.value or 0 for pool in pools)),
        }
        known = value if model in self._heard else None
        return Observation(f"model:{model}", known, model, f"model {model}", facts)

    @staticmethod
    def _p99(pools: Sequence[TransferFigures]) -> float | None:
        counts = [(pool.transfer.p99.count, pool.transfer.p99.value) for pool in pools]
        known = [value for count, value in counts if value is not None and count >= LEAST_TRANSFERS]
        if known:
            return max(known)
        return None if any(count for count, _ in counts) else 0.0

    @staticmethod
    def _failed(pools: Sequence[TransferFigures]) -> float:
        failed = sum((pool.failed.value or 0) + (pool.leases_expired.value or 0) for pool in pools)
        return failure_share(failed, failed + sum(pool.transfers.value or 0 for pool in pools))


def stale_metrics(fleet: Fleet) -> list[Observation]:
    """Seconds since anything was stored, since routers told of any model, and since each node that is heard told its
    metrics. While nothing is stored of anybody, the others are not known."""
    at = stored().at
    if at is None:
        return [Observation("fleet", None, label="all telemetry")]
    age = max(0.0, fleet.now - at)
    found = [Observation("fleet", age, label="all telemetry", facts={"at": at})]
    behind = age > IDLE_S
    routers = newest_of_routers(list(fleet.by_name), fleet.now) if fleet.by_name else fleet.now
    found.append(Observation("routers", _age(fleet, routers, behind), label="the routers' records"))
    heard = [node.name for node in fleet.nodes if not node.lost]
    for name, newest in newest_of_nodes(heard, fleet.now).items():
        found.append(Observation(f"node:{name}", _age(fleet, newest, behind), label=f"node {name}"))
    return found


def _age(fleet: Fleet, newest: float | None, behind: bool) -> float | None:
    """None also where nothing was ever heard: what has just joined is not stale."""
    return None if behind or newest is None else max(0.0, fleet.now - newest)


def stranded_kv(fleet: Fleet) -> list[Observation]:
    """The share of its KV cache that an engine holds while no request runs or waits there; not known while one does."""
    figures = {each.engine: each for each in engine_figures(Window.last(IDLE_S, fleet.now))}
    return [
        Observation(
            subject=f"engine:{engine.pk}",
            value=_held_idle(figures.get(engine.pk)),
            model=engine.model.name,
            label=label_of(engine),
        )
        for engine in fleet.serving
    ]


def _held_idle(figures: EngineFigures | None) -> float | None:
    if figures is None or figures.kv_usage.stale or figures.running.value != 0 or figures.waiting_max.value != 0:
        return None
    return figures.kv_usage.value


def pool_imbalance(fleet: Fleet) -> list[Observation]:
    """How far the busy shares of a model's prefill and decode pool are apart."""
    figures = {(pool.model, pool.role): pool for pool in pool_figures(Window.last(BALANCE_S, fleet.now))}
    found = []
    for name in fleet.by_name:
        if not {"prefill", "decode"} <= fleet.desired_roles(name):
            continue
        prefill, decode = (_busy(figures.get((name, role))) for role in ("prefill", "decode"))
        apart = abs(prefill - decode) if prefill is not None and decode is not None else None
        facts = {"prefill": prefill, "decode": decode}
        found.append(Observation(f"model:{name}", apart, name, f"model {name}", facts))
    return found


def _busy(pool: PoolFigures | None) -> float | None:
    return _known(pool.use.busy_share) if pool else None


def _known(figure: Figure) -> float | None:
    return None if figure.stale else figure.value


def engine_imbalance(fleet: Fleet) -> list[Observation]:
    """The load of a pool's busiest engine by the pool's mean, where several engines have something to do."""
    figures = {each.engine: each for each in engine_figures(Window.last(LOAD_S, fleet.now))}
    by_pool: dict[tuple[str, str], list[str]] = {}
    for engine in fleet.serving:
        by_pool.setdefault((engine.model.name, engine.role), []).append(engine.pk)
    labels = {engine.pk: engine.label for engine in fleet.serving}
    found = []
    for (model, role), engines in by_pool.items():
        if len(engines) > 1:
            loads = {engine: load for engine in engines if (load := _load(figures.get(engine))) is not None}
            busiest = max(loads, key=lambda engine: loads[engine]) if loads else ""
            value = _by_mean(list(loads.values())) if len(loads) == len(engines) else None
            facts = {"engine": labels.get(busiest, ""), "load": loads.get(busiest), "engines": len(engines), "role": role}
            found.append(Observation(f"pool:{model}/{role}", value, model, f"{model} {role}", facts))
    return found


def _load(engine: EngineFigures | None) -> float | None:
    """Requests, running and waiting, on average."""
    if engine is None or engine.running.stale or engine.running.value is None:
        return None
    return engine.running.value + (engine.waiting.value or 0.0)


def _by_mean(loads: Sequence[float]) -> float:
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean >= LEAST_LOAD else 1.0

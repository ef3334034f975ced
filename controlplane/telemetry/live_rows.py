"""The rows of every live topic at one moment, out of the board and the fleet. Pure.

Numbers that are not known are None, never 0 (telemetry.figures says when).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controlplane.core.sketches import log_edges
from controlplane.telemetry.board import DRAM, STALE_S, TENSOR, Board, GpuState
from controlplane.telemetry.figures import (
    FIVE_MINUTES_S,
    MINUTE_S,
    TEN_MINUTES_S,
    busy_shares,
    dollars_per_hour,
    effective_gpus,
    engine_rate,
    is_fresh,
    latency,
    mean,
    model_sketch,
    output_tallies,
    pool_tallies,
    requests_per_s,
    total,
    worst_model,
)
from controlplane.telemetry.rows import (
    AlertRow,
    AlertsRow,
    EngineLiveRow,
    FleetRow,
    ModelRow,
    NodeGpusRow,
    NodeLiveRow,
    OperationRow,
    ProposalRow,
    ProposalsRow,
    TrafficRow,
)
from controlplane.telemetry.topics import ALERTS, FLEET, NODES, PROPOSALS, model_topic, operation_topic
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView

TRANSFER_EDGES_MS = log_edges(1.0, 10_000.0, 24)
SPARKS = ("requests_per_s", "ttft_p99", "itl_p99", "transfer_p99")


def topics(board: Board, view: FleetView, now: float) -> dict[str, list[Any]]:
    """All rows of all topics, keyed by topic."""
    models = [model_row(board, view, model, now) for model in view.models]
    engines = [engine_row(board, engine) for engine in view.engines.values()]
    held = defaultdict(list)
    for gpu in view.gpus:
        held[gpu.node].append(gpu)
    nodes = [node_row(board, view, name, held[name], now) for name in view.nodes]
    fleet = fleet_row(board, view, now)
    if board.spark_is_due(now):
        note_spark(board, fleet, now)
    fleet = replace(fleet, spark={name: [spark[name] for spark in board.sparks] for name in SPARKS})
    found: dict[str, list[Any]] = {FLEET: [fleet, *models, *engines, *nodes, *view.operations]}
    found[NODES] = [*nodes, *(gpus_row(board, view, name, held[name]) for name in view.nodes)]
    proposals = proposals_row(view.proposals)
    found[ALERTS] = [alerts_row(view.alerts), proposals, *view.alerts]
    found[PROPOSALS] = [proposals, *view.proposals]
    for row in models:
        own_engines = [engine for engine in engines if engine.model == row.name]
        own_operations = [operation for operation in view.operations if operation.model == row.name]
        found[model_topic(row.name)] = [row, *own_engines, *own_operations]
    by_id = {engine.engine: engine for engine in engines}
    for operation in view.operations:
        if operation.finished_at is None or operation.number in view.steps:
            steps = view.steps.get(operation.number, ())
            named = dict.fromkeys(step.engine for step in steps if step.engine in by_id)
            traffic = traffic_row(board, operation)
            found[operation_topic(operation.number)] = [operation, traffic, *steps, *(by_id[id] for id in named)]
    return found


def alerts_row(alerts: Sequence[AlertRow]) -> AlertsRow:
    loud = [alert for alert in alerts if alert.silenced_until is None]
    return AlertsRow(
        id="alerts",
        type="alerts",
        firing=len(loud),
        critical=sum(alert.severity == "bad" for alert in loud),
        silenced=len(alerts) - len(loud),
    )


def proposals_row(proposals: Sequence[ProposalRow]) -> ProposalsRow:
    """Somebody is asked where the level is approve, and where the planner could not carry one out by itself."""
    waiting = [each for each in proposals if each.state == "open"]
    asked = sum(each.level == "approve" or (each.level == "automatic" and bool(each.hindrance)) for each in waiting)
    return ProposalsRow(id="proposals", type="proposals", open=len(waiting), asked=asked)


def traffic_row(board: Board, operation: OperationRow) -> TrafficRow:
    """What the board counted of the operation's model since it began."""
    seen = board.operations.get(operation.number)
    return TrafficRow(
        id=f"traffic:{operation.number}",
        type="traffic",
        requests=seen.requests if seen else None,
        lost=seen.lost if seen else None,
        since=seen.since if seen else None,
    )


def note_spark(board: Board, fleet: FleetRow, now: float) -> None:
    values = (fleet.requests_per_s, fleet.ttft.p99, fleet.itl.p99, fleet.transfer.p99)
    board.add_spark(now, dict(zip(SPARKS, values, strict=True)))


def fleet_row(board: Board, view: FleetView, now: float) -> FleetRow:
    ttft, itl = worst_model(board, view, "ttft", now), worst_model(board, view, "itl", now)
    last_minute = total(pool_tallies(board, None, MINUTE_S, now))
    five_minutes = total(pool_tallies(board, None, FIVE_MINUTES_S, now))
    requests = total(window.over(FIVE_MINUTES_S, now) for window in board.models.values())
    fresh = {gpu.uuid: board.gpus[gpu.uuid] for gpu in view.gpus if is_fresh(board.gpus.get(gpu.uuid), now)}
    shares = busy_shares(view.gpus, fresh, now)
    effective = effective_gpus(view.gpus, shares, view)
    money = dollars_per_hour(view.gpus, shares, view.prices)
    return FleetRow(
        id="fleet",
        type="fleet",
        requests_per_s=requests_per_s(board, board.models, now),
        failed=round(requests.counters["failed"]),
        ttft=ttft[0],
        ttft_model=ttft[1],
        ttft_slo_ms=ttft[2],
        itl=itl[0],
        itl_model=itl[1],
        itl_slo_ms=itl[2],
        transfer=latency(five_minutes.sketches["transfer"]),
        transfer_bytes_per_s=engine_rate(board, last_minute, "transfer_bytes", now),
        transfers_failed=round(five_minutes.counters["transfers_failed"]),
        effective_gpus=sum(effective.values()) if effective else None,
        effective_by_role={role: value for role, value in effective.items() if role},
        gpus=len(fresh),
        gpus_stale=len(view.gpus) - len(fresh),
        spare_gpus=sum(not gpu.engine for gpu in view.gpus),
        output_tokens_per_s=engine_rate(board, total(output_tallies(board, now)), "generation_tokens", now),
        gaps=round(board.lost.over(FIVE_MINUTES_S, now).counters["records"]),
        table_generation=view.table_generation,
        spark={},
        cost_per_hour=money.cost,
        idle_per_hour=money.idle,
        cost_guess=money.guess,
    )


def model_row(board: Board, view: FleetView, model: ModelView, now: float) -> ModelRow:
    engines = [engine for engine in view.engines.values() if engine.model == model.name]
    last_minute = total(pool_tallies(board, model.name, MINUTE_S, now))
    ten_minutes = total(pool_tallies(board, model.name, TEN_MINUTES_S, now))
    roles = dict.fromkeys([*(pool.role for pool in model.pools), *(engine.role for engine in engines)])
    return ModelRow(
        id=f"model:{model.name}",
        type="model",
        name=model.name,
        mode=model.mode,
        connector=model.connector,
        tensor_parallel=max((pool.tensor_parallel for pool in model.pools), default=1),
        gpus=sum(len(engine.gpus) for engine in engines),
        requests_per_s=requests_per_s(board, [model.name], now),
        ttft=latency(model_sketch(board, model.name, "ttft", now)),
        itl=latency(model_sketch(board, model.name, "itl", now)),
        slo_ttft_ms=model.slo_ttft_ms,
        slo_itl_ms=model.slo_itl_ms,
        transfer=latency(last_minute.sketches["transfer"]),
        transfer_bytes_per_s=(None if model.connector == "none" else engine_rate(board, last_minute, "transfer_bytes", now)),
        transfer_histogram=ten_minutes.sketches["transfer"].histogram(TRANSFER_EDGES_MS),
        pools={role: pool_figures(board, model, role, engines, now) for role in roles},
        served_mode=model.served_mode,
        version=model.version,
        frozen_until=model.frozen_until,
        min_uncached_tokens=model.min_uncached_tokens,
        canary=model.canary,
    )


def pool_figures(
    board: Board, model: ModelView, role: str, engines: list[EngineView], now: float
) -> dict[str, float | int | None]:
    """Counts from the fleet; tensor and dram: mean of the fresh GPUs' last minute; waiting and running: fresh engines."""
    own = [engine for engine in engines if engine.role == role]
    states = [board.gpus.get(gpu.uuid) for engine in own for gpu in engine.gpus]
    fresh = [state for state in states if state is not None and is_fresh(state, now)]
    live = [board.engines[engine.id].row for engine in own if is_fresh(board.engines.get(engine.id), now)]
    return {
        "engines": len(own),
        "ready": sum(engine.state == "ready" for engine in own),
        "desired": sum(pool.desired for pool in model.pools if pool.role == role),
        "gpus": len(states),
        "tensor": mean(state.minute.mean(TENSOR, now) for state in fresh),
        "dram": mean(state.minute.mean(DRAM, now) for state in fresh),
        "waiting": sum(row.waiting for row in live) if live else None,
        "running": sum(row.running for row in live) if live else None,
    }


def engine_row(board: Board, engine: EngineView) -> EngineLiveRow:
    """Numbers keep their last value when samples stop; `sampled_at` says how old they are. A GPU whose own samples stopped
    while the engine's go on has none: they would look as new as the engine's."""
    states = [board.gpus.get(gpu.uuid, GpuState()) for gpu in engine.gpus]
    own = board.engines.get(engine.id)
    row = own.row if own else None
    seen = own.at if own else max((state.at for state in states), default=0.0)
    return EngineLiveRow(
        id=f"engine:{engine.id}",
        type="engine",
        engine=engine.id,
        label=engine.label,
        model=engine.model,
        role=engine.role,
        state=engine.state,
        state_since=engine.state_since,
        reason=engine.reason,
        node=", ".join(engine.nodes),
        gpu_indices=[gpu.index for gpu in engine.gpus],
        gpu_uuids=[gpu.uuid for gpu in engine.gpus],
        incarnation=engine.incarnation,
        tensor=[state.tensor for state in _alive(states, seen)],
        dram=[state.dram for state in _alive(states, seen)],
        running=row.running if row else None,
        waiting=row.waiting if row else None,
        kv_usage=row.kv_usage if row else None,
        sampled_at=seen or None,
        arm=engine.arm,
        held=engine.held,
        next_role=engine.next_role,
        move_phase=engine.move_phase,
    )


def _alive(states: Sequence[GpuState], seen: float) -> list[GpuState]:
    """Those that stopped telling while `seen` went on know nothing."""
    return [state if state.at >= seen - STALE_S else GpuState() for state in states]


def node_row(board: Board, view: FleetView, name: str, gpus: Sequence[GpuView], now: float) -> NodeLiveRow:
    state = board.nodes.get(name)
    row = state.row if state else None
    return NodeLiveRow(
        id=f"node:{name}",
        type="node",
        name=name,
        state="lost" if view.nodes[name] else "ok" if is_fresh(state, now) else "silent",
        gpus=len(gpus),
        spare=[gpu.index for gpu in gpus if not gpu.engine],
        gpu_kind=gpus[0].kind if gpus else "",
        cpu=row.cpu if row else None,
        memory_used_bytes=row.memory_used_bytes if row else None,
        memory_total_bytes=row.memory_total_bytes if row else None,
        sampled_at=state.at if state else None,
        cordoned=name in view.cordoned,
        heard_at=view.heard_at.get(name),
    )


def gpus_row(board: Board, view: FleetView, name: str, gpus: Sequence[GpuView]) -> NodeGpusRow:
    """Numbers keep their last value when all samples of the node stop; `sampled_at` says how old they are."""
    told = [board.gpus.get(gpu.uuid) or GpuState() for gpu in gpus]
    seen = max((state.at for state in told), default=0.0)
    states = _alive(told, seen)
    engines = [view.engines.get(gpu.engine) for gpu in gpus]
    return NodeGpusRow(
        id=f"gpus:{name}",
        type="gpus",
        node=name,
        uuids=[gpu.uuid for gpu in gpus],
        indices=[gpu.index for gpu in gpus],
        kinds=[gpu.kind for gpu in gpus],
        engines=[gpu.engine for gpu in gpus],
        labels=[engine.label if engine else "" for engine in engines],
        models=[engine.model if engine else "" for engine in engines],
        roles=[engine.role if engine else "" for engine in engines],
        tensor=[state.tensor for state in states],
        dram=[state.dram for state in states],
        memory_used_bytes=[state.memory_used_bytes for state in states],
        memory_bytes=[gpu.memory_bytes for gpu in gpus],
        power_w=[state.power_w for state in states],
        sampled_at=seen or None,
    )

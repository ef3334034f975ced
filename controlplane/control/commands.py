"""Signed commands to node agents over Celery: fire and forget, except where an answer is asked for."""

from __future__ import annotations

import secrets
import time
from typing import Any, cast

from django.db.models import Max
from kombu.exceptions import OperationalError

from controlplane.celery import app
from controlplane.config import config
from controlplane.control.launches import launch_of
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.launch import read_snapshot
from controlplane.core.plan import Send
from controlplane.core.protocol import Command, Connector, EngineKind, EngineSpec, Rank
from controlplane.core.signing import first_incarnation, gang_key, mask, node_key, seal
from controlplane.fleet import models

TICK = "control.tick"
MEASURE = "control.measure"
ROLL_UP_HOURS = "control.roll_up_hours"
WATCH = "control.watch"
NOTIFY = "control.notify"
PLAN = "control.plan"
SEAL_AUDIT = "control.seal_audit"
ADMIT = "control.admit"
PROBE_PAIR = "control.probe_pair"
REKEY_WITHIN_S = 5.0
TASKS = {
    "start": names.TASK_START_ENGINE,
    "stop": names.TASK_STOP_ENGINE,
    "drain": names.TASK_DRAIN_ENGINE,
    "undrain": names.TASK_DRAIN_ENGINE,
    "tail_log": names.TASK_TAIL_LOG,
    "link_listen": names.TASK_LINK,
    "link_send": names.TASK_LINK,
    "rekey": names.TASK_REKEY,
}
PROBE_EXPIRES_S = 5
"""A probe that no worker has begun by then is dropped: the loop asks again."""
STALE_AFTER_S = 30
"""A command that no agent has taken by then is dropped by the broker; the loop sends it again if it is still needed."""


def send(step: Send) -> bool:
    """Send one planned command. False if it has lost its point meanwhile. Raises kombu's OperationalError."""
    spec = None
    if step.verb == "start":
        spec = read_spec(step.engine, step.rank, step.leader)
        if spec is None or spec.spec_generation != step.generation or step.rank >= len(spec.ranks):
            return False
    command = Command(
        node=step.node,
        verb=step.verb,
        issued_at=time.time(),
        engine=step.engine,
        spec_generation=step.generation,
        rank=step.rank,
        spec=spec,
    )
    _dispatch(command, expires=STALE_AFTER_S, ignore_result=True)
    return True


def tail_log(node: str, engine: str, lines: int = 200, timeout_s: float = 5.0, rank: int = 0) -> dict[str, Any]:
    """The agent's answer: `lines`, or `error`. Raises celery.exceptions.TimeoutError if it does not come in time, and
    kombu's OperationalError."""
    command = Command(node=node, verb="tail_log", issued_at=time.time(), engine=engine, rank=rank, lines=lines)
    return _ask(command, timeout_s)


def measure_link(sender: str, receiver: str, address: str, timeout_s: float = 15.0) -> dict[str, Any]:
    """How fast bytes get from one node to another, whose address is given: `gbps` and `connect_ms`, or `error` (see
    workers.links). Loads the link for a second. Raises as `tail_log` does."""
    token = secrets.token_bytes(32).hex()
    listens = _ask(Command(node=receiver, verb="link_listen", issued_at=time.time(), token=token), timeout_s)
    if "port" not in listens:
        return {"error": f"{receiver}: {listens.get('error', 'an answer without a port')}"}
    host = f"[{address}]" if ":" in address else address
    peer = f"{host}:{listens['port']}"
    return _ask(Command(node=sender, verb="link_send", issued_at=time.time(), token=token, peer=peer), timeout_s)


def _ask(command: Command, timeout_s: float) -> dict[str, Any]:
    try:
        result = _dispatch(command, expires=timeout_s, ignore_result=False)
    except RuntimeError as error:  # how Celery says that it cannot listen for the result
        raise OperationalError("answers cannot be heard") from error
    try:
        answer: dict[str, Any] = result.get(timeout=timeout_s)
    finally:
        result.forget()
    return answer


def _dispatch(command: Command, **options: Any) -> Any:
    keys = config().fleet_keys()
    # The agent derives the engine's key from what it was told to start it with.
    secret = keys.of_incarnation(command.spec.incarnation_floor) if command.spec else keys.present
    key = node_key(secret, command.node)
    envelope = seal(key, encode(command))
    queue = names.node_queue(command.node)
    id = f"{queue}.{secrets.token_hex(16)}"  # so its answer lies where no other node's user of the broker may read
    return app.send_task(TASKS[command.verb], args=[envelope], queue=queue, task_id=id, retry=False, **options)


def read_spec(engine_id: str, rank: int = 0, leader: str = "") -> EngineSpec | None:
    """What the agent of `rank` needs to start this engine: what it was made with, where it is placed now; None if it is not
    wanted (any more)."""
    row = models.Engine.objects.filter(id=engine_id, wanted=True).select_related("model").first()
    if row is None:
        return None
    ranks = list(row.ranks.select_related("node").prefetch_related("reservations__gpu"))
    held = [sorted((each.gpu for each in rank.reservations.all()), key=lambda gpu: gpu.index) for rank in ranks]
    if not held or not all(held):
        return None
    launch = read_snapshot(row.launch) or launch_of(row.model, row.tensor_parallel)
    newest = row.incarnations.aggregate(number=Max("number"))["number"] or 0
    return EngineSpec(
        id=row.id,
        model=row.model.name,
        source=launch.source.replace("{state}", str(config().state.resolve())),
        connector=cast(Connector, launch.connector),
        ranks=tuple(Rank(rank.node.name, tuple(gpu.uuid for gpu in gpus)) for rank, gpus in zip(ranks, held, strict=True)),
        kind=cast(EngineKind, row.kind),
        spec_generation=row.spec_generation,
        incarnation_floor=max(newest, row.incarnation, first_incarnation(config().fleet_keys().generation)),
        tensor_parallel=launch.tensor_parallel,
        pipeline_parallel=launch.pipeline_parallel,
        args=launch.args,
        gpu_kind=held[0][0].kind,
        kv_lease_s=launch.kv_lease_s,
        network_gbps=ranks[0].node.network_gbps,
        model_config=launch.config,
        kv_events={"endpoint": config().kv_events} if config().kv_events else {},
        leader=leader,
        gang_key=_masked_gang_key(row.id, ranks[rank].node.name) if rank < len(ranks) > 1 else "",
    )


def rekey(node: str, secret: bytes, *, alone: bool) -> str:
    """Give a node the key that follows from a fleet secret; `alone`: it believes no other any more. Returns what its agent
    answers: why not, or nothing. Raises kombu's OperationalError, celery's TimeoutError."""
    nonce = secrets.token_hex(16)
    token = mask(node_key(config().fleet_secret(), node), f"rekey:{nonce}", node_key(secret, node)).hex()
    command = Command(node=node, verb="rekey", issued_at=time.time(), token=token, peer=nonce, alone=alone)
    return str(_ask(command, REKEY_WITHIN_S).get("error", ""))


def _masked_gang_key(engine: str, node: str) -> str:
    secret = config().fleet_secret()
    return mask(node_key(secret, node), engine, gang_key(secret, engine)).hex()


def wake() -> None:
    """Ask for a tick soon. If the broker is away the next beat does it, so nothing is lost by not asking."""
    try:
        app.send_task(TICK, queue=names.CONTROL_QUEUE, expires=10, retry=False, ignore_result=True)
    except OperationalError:
        pass


def notify() -> None:
    """Have what channels are owed sent soon. If the broker is away the next beat does it."""
    try:
        app.send_task(NOTIFY, queue=names.CONTROL_QUEUE, expires=10, retry=False, ignore_result=True)
    except OperationalError:
        pass


def probe(pair: int) -> None:
    """Have the pair with this row id probed (control.probing). Raises kombu's OperationalError."""
    app.send_task(
        PROBE_PAIR, args=[pair], queue=names.CONTROL_QUEUE, expires=PROBE_EXPIRES_S, retry=False, ignore_result=True
    )

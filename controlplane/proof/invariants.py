"""What must hold of a fleet whatever happened to it, read from rows, the published table and the agents' facts.

Some hold at every moment (`broken_now`), the others once the control plane has had its time (`unsettled`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from django.db.models import Count, Q

from controlplane.core.lifecycle import ENDED, OVER, SERVING
from controlplane.core.protocol import AgentFact, EngineFact, ModelRoute
from controlplane.fleet import models
from controlplane.proof.fleet import Fleet


def broken_now(facts: Mapping[str, AgentFact]) -> list[str]:
    """A GPU in more than one running engine, by what agents tell."""
    users: dict[str, set[str]] = {}
    for fact in facts.values():
        for engine in fact.engines:
            if engine.state not in OVER:
                for gpu in engine.gpus:
                    users.setdefault(gpu, set()).add(engine.id)
    return [f"GPU {gpu} is in engines {', '.join(sorted(ids))}" for gpu, ids in users.items() if len(ids) > 1]


def read_facts(fleet: Fleet) -> dict[str, AgentFact]:
    """Of all nodes that speak. Raises redis and database errors."""
    facts = {name: fleet.agent(name) for name in models.Node.objects.values_list("name", flat=True)}
    return {name: fact for name, fact in facts.items() if fact is not None}


def out_of_service(fleet: Fleet) -> set[str]:
    """Engines that are ready and wanted by everybody, and offered to nobody. Raises redis and database errors."""
    table = fleet.table()
    offered = (
        {engine.id for model in table.models for engine in model.engines if engine.state == "ready"} if table else set()
    )
    ready = models.Engine.objects.filter(wanted=True, held=False, state="ready").values_list("id", flat=True)
    return set(ready) - offered


def unsettled(fleet: Fleet) -> list[str]:
    """What does not hold yet; to be empty soon after everything runs again. Raises redis and database errors."""
    facts = read_facts(fleet)
    table = fleet.table()
    routes = {route.name: route for route in table.models} if table else {}
    told = {(engine.id, engine.incarnation): engine for fact in facts.values() for engine in fact.engines}
    return [
        *broken_now(facts),
        *_open_operations(),
        *_reservations(),
        *_strangers(facts),
        *(line for model in models.Model.objects.all() for line in _model(model, routes.get(model.name), told)),
    ]


def _open_operations() -> Iterator[str]:
    for operation in models.Operation.objects.exclude(state__in=ENDED):
        yield f"operation {operation.pk} ({operation.verb}) is {operation.state}"


def _reservations() -> Iterator[str]:
    for held in models.Reservation.objects.filter(rank__engine__wanted=False, rank__engine__state="stopped"):
        yield f"GPU {held.gpu_id} is reserved by the stopped engine {held.rank.engine_id}"
    short = models.Engine.objects.filter(wanted=True).annotate(gpus=Count("ranks__reservations"))
    for engine in short.exclude(gpus__gt=0):
        yield f"engine {engine.id} is wanted and holds no GPU"


def _strangers(facts: Mapping[str, AgentFact]) -> Iterator[str]:
    known = set(models.Engine.objects.filter(Q(wanted=True) | ~Q(state="stopped")).values_list("id", flat=True))
    for fact in facts.values():
        yield from (f"{each.id} runs and is not wanted" for each in fact.engines if each.id not in known and _runs(each))


def _runs(engine: EngineFact) -> bool:
    return engine.state not in OVER


def _model(model: models.Model, route: ModelRoute | None, told: Mapping[tuple[str, int], EngineFact]) -> Iterator[str]:
    if route is None:
        yield f"the table does not offer {model.name}"
        return
    if model.served_mode != model.mode or route.mode != model.mode:
        yield f"{model.name} is to be {model.mode}, is {model.served_mode}, and routers are told {route.mode}"
    listed = {engine.id: engine for engine in route.engines}
    for engine in route.engines:
        fact = told.get((engine.id, engine.incarnation))
        if fact is None or fact.state not in SERVING:
            yield f"the table offers {engine.id}, start {engine.incarnation}, which does not run"
    for row in model.engines.filter(wanted=True):
        if row.move_phase or row.next_role:
            yield f"{row.id} is on its way to {row.next_role}/{row.next_arm} ({row.move_phase})"
        elif row.state != "ready":
            yield f"{row.id} is {row.state}: {row.reason}"
        elif not row.held and (listed.get(row.id) is None or listed[row.id].state != "ready"):
            yield f"{row.id} is ready and offered to nobody"
        elif not row.held and listed[row.id].role != row.role:
            yield f"{row.id} is {row.role} and offered as {listed[row.id].role}"
    yield from _pools(model)


def _pools(model: models.Model) -> Iterator[str]:
    members = Counter(model.engines.filter(wanted=True).values_list("role", "arm"))
    for pool in model.pools.all():
        if members.pop((pool.role, pool.arm), 0) != pool.desired_engines:
            yield f"pool {pool.role}/{pool.arm} has not its {pool.desired_engines} engines"
    yield from (f"{count} engines are in no pool, as {role}/{arm}" for (role, arm), count in members.items())

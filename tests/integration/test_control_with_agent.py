"""The loop against the real agent with simulated engines: started, adopted, read, drained and stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError

from controlplane.config import config
from controlplane.control import actions
from controlplane.control.loop import Loop
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.probing import probe_pair
from controlplane.core.observe import MAX_FAILURES
from controlplane.core.signing import engine_key, node_key
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.agent_kit import AgentKit
from tests.integration.control_kit import ANN, FakeFleet, new_loop, real_agent, router_alone, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> Iterator[AgentKit]:
    with real_agent(valkey_url, tmp_path) as kit:
        yield kit


@pytest.fixture
def router(valkey_url: str) -> Iterator[FakeFleet]:
    with router_alone(valkey_url) as fleet:
        yield fleet


def test_engines_live_and_die_as_their_rows_say(
    agent: AgentKit, router: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = new_loop()
    actions.add_node(ANN, agent.node)
    model = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    pools = (NewPool("prefill", 1), NewPool("decode", 1))
    actions.register_model(ANN, NewModel("m", "org/m", model, engine_kind="simulated", mode="disaggregated", pools=pools))
    router.run(loop, "ready", lambda: len(router.listed("m")) == 2, 60)
    prefill, decode = router.listed("m", "prefill")[0], router.listed("m", "decode")[0]

    call_command("engine_log", prefill)
    assert f"{prefill} serves m on 127.0.0.1" in capsys.readouterr().out

    router.run(loop, "served", lambda: not models.Operation.objects.exclude(state="done").exists())
    tell_faults("POST", prefill, {"transfer": "fail"})
    before = router.table()
    exchanged = actions.exchange_roles(ANN, "m", prefill, decode)
    router.run(loop, "taken back", lambda: probed(exchanged).state == "rolled_back")
    seen = f"KV did not move from {decode} to {prefill}: {prefill} broke off the decode leg"
    assert seen in exchanged.outcome
    assert router.table() == before, "a table was published although nothing was to change"

    tell_faults("DELETE", prefill)
    exchanged = actions.exchange_roles(ANN, "m", prefill, decode)
    router.run(loop, "exchanged", lambda: probed(exchanged).state == "done")
    assert (router.listed("m", "prefill"), router.listed("m", "decode")) == ([decode], [prefill])
    assert models.Pair.objects.filter(prefill=decode, decode=prefill, state="verified", kv_bytes__gt=0).exists()

    agent.kill()
    agent.start()
    for _ in range(3):
        turn(router, loop)
    assert models.Engine.objects.filter(incarnation=1, state="ready").count() == 2, "an engine was not adopted"

    agent.engine_processes(decode)[0].kill()
    router.run(loop, "noticed", lambda: decode not in router.listed("m"), 60)
    router.run(loop, "back", lambda: decode in router.listed("m"), 60)
    assert models.Engine.objects.get(id=decode).incarnation == 2

    smaller = actions.scale_pool(ANN, "m", "prefill", 0)
    router.run(loop, "stopped", lambda: has_ended(smaller), 60)
    until("gone", lambda: not agent.engine_processes(decode))
    router.run(loop, "free", lambda: models.Reservation.objects.count() == 1)

    models.Engine.objects.filter(id=prefill).update(failures=MAX_FAILURES - 1)
    agent.engine_processes(prefill)[0].kill()
    router.run(loop, "given up", lambda: models.Engine.objects.filter(id=prefill, failures=MAX_FAILURES).exists())
    assert agent.engine_when("failed", prefill)
    actions.scale_pool(ANN, "m", "decode", 0)
    router.run(loop, "known to its agent as stopped", lambda: state_told(agent, prefill) == "stopped")

    agent.kill()
    with pytest.raises(CommandError, match="does not answer"):
        call_command("engine_log", prefill)


def tell_faults(method: str, engine: str, faults: dict[str, str] | None = None) -> None:
    """Faults that a simulated engine has from now on (POST), or no longer (DELETE)."""
    row = models.Engine.objects.get(id=engine)
    node = row.ranks.get().node.name
    key = engine_key(node_key(config().fleet_secret(), node), engine, row.incarnation)
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.request(method, f"{row.url}/twinpool/faults", json=faults, headers=headers)
    assert answer.status_code == 200, answer.text


def probed(operation: models.Operation) -> models.Operation:
    """The operation as it is after every pair was probed that is asked for."""
    for pair in models.Pair.objects.filter(state="asked").values_list("pk", flat=True):
        probe_pair(pair)
    operation.refresh_from_db()
    return operation


def turn(router: FakeFleet, loop: Loop) -> None:
    router.turn()
    loop.run()


def state_told(agent: AgentKit, engine: str) -> str:
    return next(each.state for each in agent.fact().engines if each.id == engine)


def has_ended(operation: models.Operation) -> bool:
    operation.refresh_from_db()
    assert operation.state in ("pending", "running", "done"), operation.outcome
    return operation.state == "done"


def test_the_log_of_no_engine_is_refused() -> None:
    with pytest.raises(CommandError, match="there is no engine 'e-1'"):
        call_command("engine_log", "e-1")

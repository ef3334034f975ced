"""An engine of two ranks on two nodes, with real agents and processes: it starts, serves, dies and comes back as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis
from django.core.management import call_command

from controlplane.api.bodies import NewModelBody, new_model
from controlplane.api.documents import PoolSize
from controlplane.control import actions
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.refused import Refused
from controlplane.core.protocol import EngineFact
from controlplane.core.signing import engine_key
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.agent_kit import AgentKit
from tests.integration.control_kit import ANN, FakeFleet, new_loop, real_agent, router_alone, until

pytestmark = pytest.mark.django_db(transaction=True)

PROMPT = {"model": "m", "prompt": "one two three", "max_tokens": 8, "temperature": 0}


@pytest.fixture
def agents(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> Iterator[list[AgentKit]]:
    """Two nodes with one GPU each."""
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(real_agent(valkey_url, folder, "sim:1xh100-sxm")) for folder in folders]


@pytest.fixture
def router(valkey_url: str) -> Iterator[FakeFleet]:
    with router_alone(valkey_url) as fleet:
        yield fleet


def test_an_engine_of_two_nodes_serves_dies_and_returns_as_a_whole(agents: list[AgentKit], router: FakeFleet) -> None:
    loop = new_loop()
    for kit in agents:
        actions.add_node(ANN, kit.node)
    router.run(loop, "seen", lambda: models.Gpu.objects.count() == 2)
    shape = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    pools = (NewPool("mixed", 1, pipeline_parallel=2),)
    actions.register_model(ANN, NewModel("m", "org/m", shape, engine_kind="simulated", pools=pools))
    engine = router.run(loop, "ready", lambda: router.listed("m"), 120)[0]

    row = models.Engine.objects.get(id=engine)
    ranks = list(row.ranks.order_by("index").select_related("node"))
    assert [rank.reservations.count() for rank in ranks] == [1, 1]
    kits = {kit.node: kit for kit in agents}
    first, second = (kits[rank.node.name] for rank in ranks)
    assert first is not second
    assert answer(row, first) == answer(row, first)
    told = rank_told(second, engine)
    assert told.state == "ready" and told.compat == ""
    secrets = [engine_key(first.key, engine, row.incarnation), gang_key_of(first, engine)]
    assert not any(secret in kit.log.read_text() for kit in agents for secret in secrets)

    # Rank 1's GPU is as busy as rank 0 says, and only rank 0 tells of requests.
    def busy() -> bool:
        answer(row, first)
        rows = [each for record in second.records() if record.kind == "gpu" for each in record.rows]
        return any(each["engine"] == engine and (each["dram"] or 0) > 0 for each in rows)

    until("busy on rank 1", busy)
    assert not [record for record in second.records() if record.kind == "engine"]

    second.engine_processes(engine)[0].kill()
    router.run(loop, "out of the table", lambda: engine not in router.listed("m"), 60)
    router.run(loop, "rank 0 dead too", lambda: rank_told(first, engine).incarnation == 2, 120)
    router.run(loop, "back", lambda: engine in router.listed("m"), 120)
    row.refresh_from_db()
    assert (row.incarnation, row.failures) == (2, 1)
    assert [rank_told(kit, engine).incarnation for kit in (first, second)] == [2, 2]
    assert [len(kit.engine_processes(engine)) for kit in (first, second)] == [1, 1]
    assert models.Reservation.objects.filter(rank__engine=row).count() == 2
    answer(row, first)

    smaller = actions.scale_pool(ANN, "m", "mixed", 0)

    def ended() -> bool:
        smaller.refresh_from_db()
        return bool(smaller.state == "done")

    router.run(loop, "stopped", ended, 60)
    router.run(loop, "free", lambda: not models.Reservation.objects.exists())
    until("gone", lambda: not any(kit.engine_processes(engine) for kit in agents))
    assert {rank_told(kit, engine).state for kit in agents} == {"stopped"}


def answer(row: models.Engine, kit: AgentKit) -> str:
    key = engine_key(kit.key, row.id, row.incarnation)
    asked = httpx.post(
        f"{row.url}/v1/completions", json=PROMPT, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False
    )
    assert asked.status_code == 200, asked.text
    text: str = asked.json()["choices"][0]["text"]
    return text


def rank_told(kit: AgentKit, engine: str) -> EngineFact:
    fact = kit.engine(engine)
    assert fact
    return fact


def gang_key_of(kit: AgentKit, engine: str) -> str:
    """As the process has it in its environment."""
    return kit.engine_processes(engine)[0].environ()["TWINPOOL_GANG_KEY"]


def test_an_engine_that_does_not_fit_whole_is_refused() -> None:
    for name in ("n1", "n2"):
        node = models.Node.objects.create(name=name, seen_at="2026-01-01T00:00:00Z")
        models.Gpu.objects.create(uuid=f"{name}-0", node=node, index=0, kind="h100-sxm", memory_bytes=1)
    shape = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    new = NewModel("m", "org/m", shape, engine_kind="simulated", pools=(NewPool("mixed", 1, pipeline_parallel=3),))
    with pytest.raises(Refused, match=r"needs 3 x 1 free GPUs of one kind, each stage on one node"):
        actions.register_model(ANN, new)
    # vLLM's stages belong to one process, hence to one node.
    with pytest.raises(Refused, match=r"needs 2 free GPUs of one kind on one node"):
        actions.register_model(ANN, replace(new, engine_kind="vllm", pools=(NewPool("mixed", 1, pipeline_parallel=2),)))
    for stages, says in ((0, "1 to 16 pipeline stages"), (17, "1 to 16 pipeline stages")):
        with pytest.raises(Refused, match=says):
            actions.register_model(ANN, replace(new, pools=(NewPool("mixed", 1, pipeline_parallel=stages),)))
    assert not models.Model.objects.exists()


def test_command_line_and_api_take_the_number_of_stages() -> None:
    config_file = CONFIGS / "qwen3-8b.json"
    call_command(
        *("register_model", "m", "--source", "org/m", "--config", str(config_file), "--kind", "simulated"),
        *("--mode", "disaggregated", "--pp", "2", "--pool", "prefill=0"),
    )
    assert set(models.Pool.objects.values_list("role", "pipeline_parallel")) == {("prefill", 2), ("decode", 2)}

    asked = {"name": "b", "source": "org/b", "config": json.loads(config_file.read_text())}
    body = NewModelBody(data={**asked, "pools": [{"role": "mixed", "pipeline_parallel": 4}]})
    assert body.is_valid(), body.errors
    actions.register_model(ANN, new_model(body.validated_data))
    pool = models.Pool.objects.get(model__name="b")
    assert (pool.pipeline_parallel, pool.gpus_per_engine, PoolSize(pool).data["pipeline_parallel"]) == (4, 4, 4)
    assert not NewModelBody(data={**asked, "pools": [{"role": "mixed", "pipeline_parallel": 17}]}).is_valid()

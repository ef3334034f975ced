"""A canary on a small fleet (agent, simulated engines, router, control loop) becomes slow and is rolled back by itself."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from controlplane.config import config
from controlplane.control import actions
from controlplane.control.loop import Loop
from controlplane.control.newmodel import NewModel, NewPool
from controlplane.control.probing import probe_pair
from controlplane.core import names
from controlplane.core.codec import decode
from controlplane.core.protocol import EngineRoute, RoutingTable
from controlplane.core.signing import engine_key, table_key, unseal
from controlplane.fleet import models
from controlplane.physics.catalog import CONFIGS
from tests.integration.agent_kit import AgentKit, until
from tests.integration.control_kit import ANN, new_loop, real_agent
from tests.integration.router_process import RouterProcess, router_process

pytestmark = pytest.mark.django_db(transaction=True)

LIMITS = {"session_s": 0, "settle_s": 0, "min_step_s": 0, "min_sessions": 10_000}
"""Nothing is promoted in this test."""


@pytest.fixture
def agent(valkey: redis.Redis, valkey_url: str, tmp_path: Path) -> Iterator[AgentKit]:
    with real_agent(valkey_url, tmp_path) as kit:
        yield kit


class Fleet:
    """The control loop and the prober, which a test turns by hand."""

    def __init__(self, valkey: redis.Redis, agent: AgentKit) -> None:
        self.valkey, self.agent = valkey, agent
        self.loop: Loop = new_loop()

    def turn(self) -> None:
        self.loop.run()
        for pair in models.Pair.objects.filter(state="asked").values_list("pk", flat=True):
            probe_pair(pair)

    def run(self, what: str, check: Any, timeout_s: float = 180.0) -> Any:
        def once() -> Any:
            self.turn()
            return check()

        return until(what, once, timeout_s)

    def engines(self, arm: str = "main", role: str = "") -> list[EngineRoute]:
        """Those that routers may choose now."""
        envelope = self.valkey.get(names.TABLE_KEY)
        if not isinstance(envelope, bytes):
            return []
        table = decode(RoutingTable, unseal(table_key(config().fleet_secret()), envelope))
        listed = (engine for model in table.models for engine in model.engines)
        return [each for each in listed if (each.state, each.arm) == ("ready", arm) and role in ("", each.role)]

    def slow(self, engine: EngineRoute, factor: float) -> None:
        key = engine_key(self.agent.key, engine.id, engine.incarnation)
        answer = httpx.post(
            f"{engine.url}/twinpool/faults",
            json={"slow": factor},
            headers={"authorization": f"Bearer {key}"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text


@contextmanager
def load(router: RouterProcess, clients: int) -> Iterator[Counter[str]]:
    """Clients that stream answers one after the other; counts them by how they ended: `whole`, or what was wrong."""
    ended: Counter[str] = Counter()
    over = threading.Event()
    body = {"model": "m", "prompt": "hello there", "max_tokens": 3, "stream": True, "ignore_eos": True}

    def ask() -> None:
        with httpx.Client(timeout=90, trust_env=False) as client:
            while not over.is_set():
                answer = client.post(f"{router.url}/v1/completions", json=body)
                good = answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]")
                ended["whole" if good else f"{answer.status_code} {answer.text[-200:]}"] += 1

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_canary_that_becomes_slow_is_rolled_back_and_nothing_is_lost(
    valkey: redis.Redis, valkey_url: str, agent: AgentKit, tmp_path: Path
) -> None:
    shape = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    fleet = Fleet(valkey, agent)
    actions.add_node(ANN, agent.node)
    pools = (NewPool("mixed", 4),)
    new = NewModel("m", "org/m", shape, engine_kind="simulated", pools=pools, slo_ttft_ms=20_000, slo_itl_ms=200)
    actions.register_model(ANN, new)
    with router_process(tmp_path, valkey_url, "--valkey", secret=config().fleet_secret()) as router:
        fleet.run("serving", lambda: len(fleet.engines()) == 4)
        fleet.run("settled", lambda: not models.Operation.objects.exclude(state="done").exists())
        with load(router, 10) as ended:
            begun = actions.set_canary(ANN, "m", "disaggregated", guardrails=LIMITS)
            fleet.run("moved", lambda: len(fleet.engines("canary")) == 2 and has_ended(begun))
            canary = models.Canary.objects.get()

            def sampled() -> models.Canary | None:
                canary.refresh_from_db()
                return canary if canary.verdict and canary.verdict["numbers"]["step"]["blocks"] >= 2 else None

            fleet.run("compared", sampled)
            assert (canary.state, canary.verdict["because"]) == ("running", "sessions"), canary.verdict["sentence"]
            for engine in fleet.engines("canary", "decode"):
                fleet.slow(engine, 60)
            end = fleet.run("rolled back", lambda: models.Operation.objects.filter(verb="end_canary").first())
            fleet.run("back", lambda: len(fleet.engines()) == 4 and has_ended(end))
        assert set(ended) == {"whole"}, ended
    canary.refresh_from_db()
    assert (canary.state, end.actor) == ("rolled_back", "canary")
    assert canary.reason.startswith("Rolled back: ") and canary.reason.endswith("over the SLO; the canary is worse.")
    assert canary.verdict["numbers"]["difference"]["lower"] > 0
    assert {engine.role for engine in fleet.engines()} == {"mixed"}
    assert models.Engine.objects.filter(incarnation=1, state="ready", arm="main").count() == 4, "one was restarted"
    assert models.Model.objects.get().mode == "monolithic"


def has_ended(operation: models.Operation) -> bool:
    operation.refresh_from_db()
    assert operation.state in ("pending", "running", "done"), operation.outcome
    return operation.state == "done"

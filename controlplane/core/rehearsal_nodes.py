"""The nodes of a rehearsal: fakes that run what the rows of the real ones say. Pure."""

from __future__ import annotations

from controlplane.core.fake_node import FakeNode
from controlplane.core.lifecycle import OVER, SERVING
from controlplane.core.protocol import EngineFact
from controlplane.core.world import EngineState, NodeState, World


def fake_node(node: NodeState, world: World, now: float) -> FakeNode:
    """A node that runs what its rows say."""
    fake = FakeNode(node.name, gpu_count=0, start_s=0.0)
    for engine in world.engines:
        for index, rank in enumerate(engine.ranks):
            if rank.node == node.name and engine.state != "planned":
                fake.engines[engine.id, index] = _fact(engine, index, now)
    return fake


def _fact(engine: EngineState, rank: int, now: float) -> EngineFact:
    serves = engine.state in SERVING
    return EngineFact(
        id=engine.id,
        model=engine.model,
        rank=rank,
        incarnation=engine.incarnation,
        spec_generation=engine.spec_generation,
        state="starting" if engine.state in ("lost", "verifying") else engine.state,
        kind="simulated",
        url=engine.url or "http://127.0.0.1:9000",
        started_at=now,
        ready_at=now if serves else None,
        quiet_since=now if serves else None,
        scraped_at=now if serves else None,
        compat=engine.compat,
        gpus=engine.ranks[rank].gpus if engine.state not in OVER else (),
    )

"""Whatever happens in a fleet: what a page had of a topic and the frames it gets are what a page that opens now gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.protocol import GpuRow, NodeRow, RouterRow
from controlplane.live.frames import Frame, State
from controlplane.telemetry import live_rows
from controlplane.telemetry.board import Board
from controlplane.telemetry.records import Sample
from controlplane.telemetry.rows import AlertRow, OperationRow, ProposalRow, StepRow
from controlplane.telemetry.testing import engine_row, histogram, request_row
from controlplane.telemetry.view import EngineView, FleetView, GpuView, ModelView, PoolView

T0 = 1_796_018_400.0
NODES, MODELS, ENGINES, GPUS = ("n1", "n2"), ("llama", "org/qwen"), ("e1", "e2", "e3"), ("g1", "g2", "g3", "g4")
TYPES = {"fleet", "model", "engine", "node", "gpus", "operation", "step", "traffic", "alerts", "alert"} | {
    "proposals",
    "proposal",
}
number = st.floats(0, 1, width=32)


class World:
    """A fleet to which events happen one after the other."""

    def __init__(self) -> None:
        self.now = T0
        self.board = Board()
        gpus = tuple(GpuView(uuid, NODES[i % 2], i // 2, "h100-sxm", "") for i, uuid in enumerate(GPUS))
        self.view = FleetView(nodes=dict.fromkeys(NODES, False), gpus=gpus)

    def feed(self, kind: Any, source: str, *rows: Any) -> None:
        self.board.apply(Sample("0-0", self.now, self.now, source, kind, rows), self.view)

    def topics(self) -> dict[str, list[dict[str, Any]]]:
        made = live_rows.topics(self.board, self.view, self.now)
        return {topic: orjson.loads(orjson.dumps(rows)) for topic, rows in made.items()}


Event = Callable[[World], None]


def passes(seconds: float) -> Event:
    def happen(world: World) -> None:
        world.now += seconds

    return happen


def tells_gpu(uuid: str, engine: str, value: float) -> Event:
    return lambda world: world.feed("gpu", "agent:n1", GpuRow(uuid, engine, tensor=value, dram=value, power_w=300.0))


def tells_engine(engine: str, model: str, value: float, incarnation: int) -> Event:
    row = engine_row(
        engine, model, incarnation, running=int(value * 50), histograms={"transfer": histogram([0.05] * int(value * 9))}
    )
    return lambda world: world.feed("engine", "agent:n1", row)


def tells_node(node: str, value: float) -> Event:
    return lambda world: world.feed("node", f"agent:{node}", NodeRow(node, cpu=value))


def tells_router(dropped: int) -> Event:
    return lambda world: world.feed("router", "router:r1", RouterRow("r1", 0, 0, 0, 0, 0, dropped))


def ends_request(model: str, value: float) -> Event:
    return lambda world: world.feed(
        "request",
        "router:r1",
        request_row("r", model, world.now - 1, ttft_ms=value * 1000, outcome="cut" if value > 0.9 else "ok"),
    )


def has_models(names: list[str]) -> Event:
    def happen(world: World) -> None:
        pools = (PoolView("prefill", 1, 1), PoolView("decode", 1, 1))
        models = tuple(ModelView(name, "disaggregated", "nixl", 1000.0, 50.0, pools) for name in names)
        world.view = replace(world.view, models=models)

    return happen


def has_engine(id: str, model: str, role: str, state: str, gpu: int | None) -> Event:
    """`gpu` None: it is gone."""

    def happen(world: World) -> None:
        engines = dict(world.view.engines)
        engines.pop(id, None)
        if gpu is not None:
            held = (world.view.gpus[gpu],)
            engines[id] = EngineView(id, id.upper(), model, role, state, world.now, "", 1, (held[0].node,), held)
        world.view = replace(world.view, engines=engines)

    return happen


def loses_node(node: str, lost: bool) -> Event:
    def happen(world: World) -> None:
        world.view = replace(world.view, nodes={**world.view.nodes, node: lost})

    return happen


def runs_operation(number: int, model: str, state: str, engine: str) -> Event:
    """State "": it is shown no more."""

    def happen(world: World) -> None:
        kept = tuple(each for each in world.view.operations if each.number != number)
        steps = {key: value for key, value in world.view.steps.items() if key != number}
        if state:
            ended = world.now if state == "done" else None
            row = OperationRow(
                f"operation:{number}", "operation", number, "rebalance", model, state, "ada", "", "", T0, ended, 0, 1
            )
            kept = (row, *kept)
            steps[number] = (
                StepRow(f"step:{number}/0", "step", number, 0, "start", "prefill", engine, engine, state, "", None, ended),
            )
        world.view = replace(world.view, operations=kept, steps=steps)

    return happen


def rings_alert(number: int, fires: bool) -> Event:
    def happen(world: World) -> None:
        kept = tuple(each for each in world.view.alerts if each.number != number)
        row = AlertRow(
            id=f"alert:{number}",
            type="alert",
            number=number,
            rule="pool_empty",
            severity="bad",
            subject="model:llama",
            model="llama",
            label="",
            value=1.0,
            peak=1.0,
            threshold=0.5,
            last="bad",
            facts={},
            began_at=T0,
            fired_at=world.now,
            silenced_until=None,
            silenced_by="",
            silenced_why="",
        )
        world.view = replace(world.view, alerts=(row, *kept) if fires else kept)

    return happen


def proposes(number: int, model: str, state: str) -> Event:
    """State "": it is shown no more."""

    def happen(world: World) -> None:
        kept = tuple(each for each in world.view.proposals if each.number != number)
        row = ProposalRow(
            id=f"proposal:{number}",
            type="proposal",
            number=number,
            model=model,
            giver="",
            state=state,
            level="approve",
            cause="mix",
            mode_before="disaggregated",
            mode="disaggregated",
            before={"prefill": 1, "decode": 2},
            sizes={"prefill": 2, "decode": 1},
            title="",
            moves=1,
            reason="",
            ttft_p99_ms=(None, 500.0),
            itl_p99_ms=(20.0, 25.0),
            created_at=T0,
            seen_at=world.now,
            expires_at=T0 + 900,
            hindrance="",
            decided_at=None if state == "open" else world.now,
            decided_by="",
            decision="",
            operation=None,
            measured=False,
        )
        world.view = replace(world.view, proposals=(row, *kept) if state else kept)

    return happen


models, engines = st.sampled_from(MODELS), st.sampled_from(ENGINES)
events = st.one_of(
    st.builds(passes, st.sampled_from([0.0, 1.0, 7.0, 400.0])),
    st.builds(tells_gpu, st.sampled_from(GPUS), st.sampled_from(("", *ENGINES)), number),
    st.builds(tells_engine, engines, models, number, st.integers(1, 3)),
    st.builds(tells_node, st.sampled_from(NODES), number),
    st.builds(tells_router, st.integers(0, 5)),
    st.builds(ends_request, models, number),
    st.builds(has_models, st.lists(models, unique=True)),
    st.builds(
        has_engine,
        *(
            engines,
            models,
            st.sampled_from(("prefill", "decode", "mixed")),
            st.sampled_from(("ready", "draining", "failed")),
        ),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    st.builds(rings_alert, st.integers(1, 2), st.booleans()),
    st.builds(proposes, st.integers(1, 2), models, st.sampled_from(("open", "rejected", ""))),
    st.builds(loses_node, st.sampled_from(NODES), st.booleans()),
    st.builds(runs_operation, st.integers(1, 2), models, st.sampled_from(("running", "done", "")), engines),
)


class Page:
    """One reader of every topic: keeps what it was told, as static/js/rows.js does."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._sent: dict[str, tuple[str, int]] = {}

    def hear(self, topic: str, frame: Frame) -> None:
        told = orjson.loads(frame.after(self._sent.get(topic)))
        self._sent[topic] = frame.stamp
        mine = {} if told["kind"] == "snapshot" else self.rows[topic]
        for row in told["rows"]:
            if row["type"] == "gone":
                del mine[row["id"]]
            else:
                mine[row["id"]] = row
        self.rows[topic] = mine


@settings(max_examples=150)
@given(st.lists(st.tuples(st.lists(events, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=12))
def test_old_state_and_frames_are_a_fresh_snapshot_of_every_topic_after_every_event(
    seconds: list[tuple[list[Event], bool]],
) -> None:
    world, states, page = World(), dict[str, State](), Page()
    for happened, page_is_slow in seconds:
        for event in happened:
            event(world)
        topics = world.topics()
        for topic in topics.keys() | states.keys():  # one that is no more says so with no rows, as the publisher does
            rows, before = topics.get(topic, []), states.get(topic)
            assert len({row["id"] for row in rows}) == len(rows)
            assert {row["type"] for row in rows} <= TYPES
            states[topic] = State(topic, "1", before.seq + 1 if before else 1, world.now, orjson.dumps(rows))
            frame = Frame(states[topic], before)
            if not page_is_slow:
                page.hear(topic, frame)
                fresh = orjson.loads(frame.after(None))
                assert fresh["kind"] == "snapshot"
                assert page.rows[topic] == {row["id"]: row for row in fresh["rows"]}

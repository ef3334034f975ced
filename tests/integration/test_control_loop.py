"""The control loop on real PostgreSQL, Valkey and broker, against fake nodes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from django.utils import timezone

from controlplane.control import actions
from controlplane.control.facts import Boot, Facts
from controlplane.control.gather import read_nodes
from controlplane.control.leases import lease
from controlplane.control.loop import Loop
from controlplane.control.operations import read_open
from controlplane.control.seed import new_model, seed
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.fake_node import FakeNode
from controlplane.core.protocol import RouterFact
from controlplane.core.scenes import SCENES
from controlplane.core.signing import node_key, router_key, seal
from controlplane.fleet import models
from tests.integration.control_kit import ANN, FakeFleet, new_loop

pytestmark = pytest.mark.django_db(transaction=True)

NODES = dict.fromkeys(("n1", "n2", "n3"), Boot("", 0.0))
LLAMA, QWEN = "llama-3.1-70b", "qwen3-8b"


@pytest.fixture
def fleet(valkey: redis.Redis, valkey_url: str) -> Iterator[FakeFleet]:
    fleet = FakeFleet(valkey_url)
    yield fleet
    fleet.close()


@pytest.fixture
def loop() -> Loop:
    return new_loop()


@pytest.fixture
def demo(fleet: FakeFleet, loop: Loop) -> FakeFleet:
    """The demo fleet, all engines ready."""
    seed(SCENES["demo"], "")
    fleet.run(loop, "ready", lambda: len(fleet.listed(LLAMA)) == 4 and len(fleet.listed(QWEN)) == 4)
    return fleet


def spare_gpus() -> int:
    return models.Gpu.objects.filter(reservation=None).count()


def table_stamp() -> tuple[int, int]:
    row = models.TableState.objects.get()
    return (row.epoch, row.generation)


def done(operation: models.Operation) -> bool:
    operation.refresh_from_db()
    return operation.state == "done"


def test_the_demo_fleet_comes_up_and_its_operations_are_done(demo: FakeFleet, loop: Loop) -> None:
    assert len(demo.listed(LLAMA, "prefill")) == 2
    assert len(demo.listed(LLAMA, "decode")) == 2
    assert len(demo.listed(QWEN, "mixed")) == 4
    assert spare_gpus() == 4
    assert [engine.label for engine in models.Engine.objects.filter(model__name=LLAMA)] == ["P1", "P2", "D3", "D4"]
    demo.run(loop, "done", lambda: not read_open())
    assert set(models.Operation.objects.values_list("state", flat=True)) == {"done"}
    table = demo.table()
    assert table is not None
    assert table.stamp == table_stamp()
    assert not table.require_key
    assert table.models[0].engines[0].max_num_seqs == 128


def test_a_satisfied_fleet_is_left_alone(demo: FakeFleet, loop: Loop) -> None:
    demo.run(loop, "done", lambda: not read_open())
    before = (len(demo.received), demo.table())
    for _ in range(3):
        demo.turn()
        loop.run()
    assert (len(demo.received), demo.table()) == before


def test_a_larger_pool_gets_engines_and_a_smaller_one_is_drained(demo: FakeFleet, loop: Loop) -> None:
    larger = actions.scale_pool(ANN, QWEN, "mixed", 6, reason="rush hour")
    demo.run(loop, "larger", lambda: len(demo.listed(QWEN)) == 6 and done(larger))
    smaller = actions.scale_pool(ANN, QWEN, "mixed", 5)
    leaving = demo.run(loop, "retired", lambda: models.Engine.objects.filter(wanted=False).first())
    demo.node_of(leaving.id).work(leaving.id, 1)
    demo.run(loop, "out of the table", lambda: len(demo.listed(QWEN)) == 5)
    for _ in range(5):
        demo.turn()
        loop.run()
    assert demo.fact(leaving.id).state == "draining"  # type: ignore[union-attr]
    assert not done(smaller)
    demo.node_of(leaving.id).work(leaving.id, 0)
    demo.run(loop, "stopped", lambda: done(smaller))
    assert demo.fact(leaving.id).state == "stopped"  # type: ignore[union-attr]
    demo.run(loop, "free again", lambda: spare_gpus() == 3)


def test_an_engine_is_not_stopped_before_every_router_has_let_go(demo: FakeFleet, loop: Loop) -> None:
    demo.router_follows = False
    smaller = actions.scale_pool(ANN, QWEN, "mixed", 3)
    demo.run(loop, "out of the table", lambda: len(demo.listed(QWEN)) == 3)
    step = demo.run(loop, "waiting", lambda: smaller.steps.filter(reason__contains="router r1").first())
    assert demo.fact(step.engine).state == "draining"  # type: ignore[union-attr]
    demo.router_follows = True
    demo.run(loop, "stopped", lambda: done(smaller))


def test_roles_are_exchanged_on_a_live_pair(demo: FakeFleet, loop: Loop) -> None:
    prefill, decode = demo.listed(LLAMA, "prefill")[0], demo.listed(LLAMA, "decode")[0]
    operation = actions.exchange_roles(ANN, LLAMA, prefill, decode)
    demo.run(loop, "out of the table", lambda: not {prefill, decode} & set(demo.listed(LLAMA)))
    assert len(demo.listed(LLAMA)) == 2 and not done(operation)

    def proven() -> bool:
        """Whoever proves pairs says that KV moved."""
        models.Pair.objects.filter(state="asked").update(state="verified", kv_bytes=1)
        return done(operation)

    demo.run(loop, "exchanged", proven)
    assert prefill in demo.listed(LLAMA, "decode") and decode in demo.listed(LLAMA, "prefill")
    assert demo.nodes["n1"].starts + demo.nodes["n2"].starts == 4, "nothing was restarted"


def test_roles_of_the_only_pair_are_exchanged_in_one_table(demo: FakeFleet, loop: Loop) -> None:
    prefill, decode = demo.listed(LLAMA, "prefill")[0], demo.listed(LLAMA, "decode")[0]
    models.Pool.objects.update(floor=2)
    demo.router_follows = False
    operation = actions.exchange_roles(ANN, LLAMA, prefill, decode)
    demo.run(loop, "asked for", lambda: models.Pair.objects.filter(state="asked").count() == 2)
    assert prefill in demo.listed(LLAMA, "prefill") and decode in demo.listed(LLAMA, "decode")
    models.Pair.objects.update(state="verified", kv_bytes=1, at=timezone.now())
    demo.run(loop, "published", lambda: decode in demo.listed(LLAMA, "prefill"))
    assert prefill in demo.listed(LLAMA, "decode") and not done(operation)
    demo.router_follows = True
    demo.run(loop, "acknowledged", lambda: done(operation))


def test_a_crashed_engine_leaves_the_table_and_comes_back(demo: FakeFleet, loop: Loop) -> None:
    engine = demo.listed(QWEN)[0]
    demo.node_of(engine).crash(engine)
    demo.run(loop, "noticed", lambda: engine not in demo.listed(QWEN))
    demo.run(loop, "back", lambda: engine in demo.listed(QWEN))
    history = models.Incarnation.objects.filter(engine_id=engine).order_by("number")
    assert [(each.number, bool(each.ended_at)) for each in history] == [(1, True), (2, False)]
    assert "killed by signal 9" in history[0].reason
    row = models.Engine.objects.get(id=engine)
    assert (row.incarnation, row.spec_generation, row.failures) == (2, 2, 1)


def test_a_log_that_is_no_text_does_not_stop_the_loop(demo: FakeFleet, loop: Loop) -> None:
    engine = demo.listed(QWEN)[0]
    demo.node_of(engine).crash(engine, "dumped \0 and \ud800 core")
    demo.run(loop, "noticed", lambda: models.Incarnation.objects.filter(engine_id=engine, ended_at__isnull=False))
    assert "dumped  and ? core" in models.Incarnation.objects.get(engine_id=engine, number=1).reason


def test_labels_that_an_agent_no_longer_tells_are_gone_and_the_operators_win(demo: FakeFleet, loop: Loop) -> None:
    models.Node.objects.filter(name="n1").update(labels={"zone": "a"})
    demo.nodes["n1"].labels = {"zone": "b", "disk": "nvme"}
    told = {"zone": "b", "disk": "nvme"}
    demo.run(loop, "recorded", lambda: models.Node.objects.filter(name="n1", agent_labels=told).exists())
    assert read_nodes(Facts())[0].labels == {"zone": "a", "disk": "nvme"}
    demo.nodes["n1"].labels = {}
    demo.run(loop, "forgotten", lambda: models.Node.objects.filter(name="n1", agent_labels={}).exists())
    assert read_nodes(Facts())[0].labels == {"zone": "a"}


def test_a_crash_loop_ends_and_an_operator_can_try_again(demo: FakeFleet, loop: Loop) -> None:
    engine = demo.listed(QWEN)[0]
    node = demo.node_of(engine)
    node.broken = True
    models.Engine.objects.filter(id=engine).update(failures=3)
    node.crash(engine)
    demo.run(loop, "failed", lambda: models.Engine.objects.filter(id=engine, failures=4).exists())
    models.Engine.objects.filter(id=engine).update(retry_at=None)
    demo.run(loop, "given up", lambda: models.Engine.objects.filter(id=engine, failures=5).exists())
    row = models.Engine.objects.get(id=engine)
    assert "given up after 5 failures" in row.reason and "no luck" in row.reason
    starts = node.starts
    for _ in range(3):
        demo.turn()
        loop.run()
    assert node.starts == starts
    node.broken = False
    operation = actions.retry_engine(ANN, engine)
    demo.run(loop, "back", lambda: engine in demo.listed(QWEN) and done(operation))


def test_a_table_that_valkey_lost_is_published_again(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    before = demo.table()
    valkey.delete(names.TABLE_KEY)
    demo.turn()
    loop.run()
    assert demo.table() == before


def test_a_forged_table_is_replaced(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    before = demo.table()
    valkey.set(names.TABLE_KEY, seal(b"x" * 32, {"epoch": 99, "generation": 99}))
    loop.run()
    assert demo.table() == before


def test_one_unroutable_model_does_not_hold_up_the_table(
    demo: FakeFleet, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    models.Model.objects.filter(name=QWEN).update(aliases=[LLAMA])
    with caplog.at_level(logging.ERROR):
        demo.run(loop, "left out", lambda: not demo.listed(QWEN))
        loop.run()
    assert len(demo.listed(LLAMA)) == 4
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"model {QWEN} is left out of the routing table: another model (or this one twice) has the name {LLAMA}"]
    models.Model.objects.filter(name=QWEN).update(aliases=[])
    demo.run(loop, "back", lambda: len(demo.listed(QWEN)) == 4)


def test_a_restored_database_raises_the_epoch(demo: FakeFleet, loop: Loop) -> None:
    generation = table_stamp()[1]
    models.TableState.objects.update(generation=1)
    demo.run(loop, "newer", lambda: table_stamp() == (1, 2))
    table = demo.table()
    assert table is not None and table.stamp == (1, 2) > (0, generation)


def test_everything_in_valkey_can_be_rebuilt(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    before = demo.table()
    actions.scale_pool(ANN, QWEN, "mixed", 5)
    valkey.flushall()
    demo.run(loop, "larger", lambda: len(demo.listed(QWEN)) == 5)
    assert before is not None
    assert demo.nodes["n1"].starts + demo.nodes["n2"].starts == 4, "nothing else was restarted"


def test_another_kind_of_value_under_the_tables_key_is_replaced(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    before = demo.table()
    valkey.delete(names.TABLE_KEY)
    valkey.lpush(names.TABLE_KEY, "no table")
    loop.run()
    assert demo.table() == before


def test_numbers_that_come_back_from_postgresql_otherwise_make_no_new_tables(demo: FakeFleet, loop: Loop) -> None:
    models.Model.objects.filter(name=QWEN).update(slo_ttft_ms=1e308)
    loop.run()
    before = table_stamp()
    loop.run()
    assert table_stamp() == before


def test_an_engine_whose_node_was_put_back_serves_again_and_its_numbers_still_rise(demo: FakeFleet, loop: Loop) -> None:
    """The agent knows an earlier start, and its process runs."""
    engine = demo.listed(QWEN)[0]
    node = demo.node_of(engine)
    snapshot = node.engines[engine, 0]
    node.crash(engine)
    demo.run(loop, "again", lambda: (fact := demo.fact(engine)) and fact.state == "ready" and fact.incarnation == 2)
    demo.run(loop, "listed", lambda: engine in demo.listed(QWEN))
    node.engines[engine, 0] = snapshot
    demo.run(loop, "adopted", lambda: models.Engine.objects.get(id=engine).incarnation == 1 and engine in demo.listed(QWEN))
    node.crash(engine)
    demo.run(loop, "a new number", lambda: models.Engine.objects.get(id=engine).incarnation == 3)


def test_a_removed_model_leaves_the_table(demo: FakeFleet, loop: Loop) -> None:
    actions.scale_pool(ANN, QWEN, "mixed", 0)
    demo.run(loop, "stopped", lambda: not models.Engine.objects.filter(model__name=QWEN).exclude(state="stopped"))
    demo.run(loop, "done", lambda: not read_open())
    operation = actions.remove_model(ANN, QWEN)
    demo.run(loop, "done", lambda: done(operation))
    table = demo.table()
    assert table is not None and [model.name for model in table.models] == [LLAMA]
    assert len(demo.listed(LLAMA)) == 4


def test_an_agent_without_its_engines_gets_them_started_again(demo: FakeFleet, loop: Loop) -> None:
    demo.nodes["n1"].engines.clear()
    demo.run(loop, "gone", lambda: len(demo.listed(LLAMA)) == 2)
    demo.run(loop, "back", lambda: len(demo.listed(LLAMA)) == 4)


def test_an_engine_that_no_row_knows_is_stopped(demo: FakeFleet, loop: Loop) -> None:
    node = demo.nodes["n3"]
    known = next(iter(node.engines.values()))
    node.engines["e-stranger", 0] = replace(known, id="e-stranger")
    demo.run(loop, "stopped", lambda: demo.fact("e-stranger").state == "stopped")  # type: ignore[union-attr]


def test_a_silent_node_of_three_is_held_in_the_table(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    demo.silent = {"n1"}
    valkey.delete(names.fact_key("agent", "n1"))
    for _ in range(3):
        demo.turn()
        loop.run()
    assert len(demo.listed(LLAMA)) == 4
    assert not models.Node.objects.get(name="n1").lost


def test_one_silent_node_of_many_is_lost_and_comes_back(fleet: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    seed(SCENES["demo"], "")
    actions.add_node(ANN, "n4")
    fleet.nodes["n4"] = FakeNode("n4", start_s=0)
    fleet.run(loop, "ready", lambda: len(fleet.listed(LLAMA)) == 4)
    lost = next(name for name, node in fleet.nodes.items() if any(f.model == LLAMA for f in node.engines.values()))
    fleet.silent = {lost}
    valkey.delete(names.fact_key("agent", lost))
    fleet.run(loop, "lost", lambda: models.Node.objects.get(name=lost).lost)
    assert len(fleet.listed(LLAMA)) == 2
    assert models.Engine.objects.filter(state="lost", ranks__node__name=lost).exists()
    fleet.silent = set()
    starts = fleet.nodes[lost].starts
    fleet.run(loop, "back", lambda: len(fleet.listed(LLAMA)) == 4)
    assert fleet.nodes[lost].starts == starts, "its engines were adopted, not restarted"


BAD_FACTS = {
    "no text": None,
    "no node": None,
    "another key": None,
    "no fact": lambda fact: fact.clear(),
    "another node": lambda fact: fact.update(node="n2"),
    "an unknown state": lambda fact: fact["engines"][0].update(state="haunted"),
    "a state that no agent tells": lambda fact: fact["engines"][0].update(state="planned"),
    "a url with a path": lambda fact: fact["engines"][0].update(url="http://10.0.0.1:80/admin"),
    "a time that is none": lambda fact: fact["engines"][0].update(started_at=1e300),
    "a number too large": lambda fact: fact["engines"][0].update(spec_generation=1 << 80),
    "a GPU no row could hold": lambda fact: fact["gpus"][0].update(index=1 << 40),
    "a kind no row could hold": lambda fact: fact["gpus"][0].update(kind="k" * 33),
    "a url no row could hold": lambda fact: fact["engines"][0].update(url=f"http://{'h' * 300}:80"),
    "a speed that is none": lambda fact: fact.update(network_gbps=-1.0),
}


@pytest.mark.parametrize("problem", BAD_FACTS)
def test_a_bad_fact_is_refused_and_said_so_once(
    demo: FakeFleet, loop: Loop, valkey: redis.Redis, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    node = demo.nodes["n1"]
    name, key, document = "n1", node_key(demo.secret, "n1"), encode(node.fact(0.0))
    demo.silent = {"n1"}
    if problem == "no node":
        name = "n9"
    elif problem == "another key":
        key = node_key(demo.secret, "n2")
    if spoil := BAD_FACTS[problem]:
        spoil(document)
    raw = names.fact_key("agent", name).encode() + (b"\xff\n" if problem == "no text" else b"")
    valkey.set(raw, seal(key, document))
    with caplog.at_level(logging.WARNING, "controlplane.control.facts"):
        loop.run()
        loop.run()
    said = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    shown = raw.decode(errors="backslashreplace").replace("\\", "\\\\").replace("\n", "\\n")
    assert len(said) == 1 and said[0].startswith(f"{shown} is refused")
    assert len(demo.listed(LLAMA)) == 4


def test_what_postgresql_refuses_of_one_node_stops_no_other(
    demo: FakeFleet, loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if a check is forgotten: here all of them are."""
    monkeypatch.setattr("controlplane.control.facts._check_agent", lambda fact: None)
    demo.nodes["n1"].gpu_kind = "k" * 33
    demo.nodes["n2"].gpu_kind = "h200-sxm"
    demo.turn()
    loop.run()
    loop.run()
    kinds = models.Gpu.objects.order_by("node__name").distinct().values_list("node__name", "kind")
    assert list(kinds) == [("n1", "h100-sxm"), ("n2", "h200-sxm"), ("n3", "h100-sxm")]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and said[0].startswith("the fact of node n1 cannot be stored and is left out: value too long")


def test_a_routers_impossible_stamp_is_refused(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    fact = RouterFact("r9", "boot", 1, 0.0, epoch=1 << 80, generation=0)
    valkey.set(names.fact_key("router", "r9"), seal(router_key(demo.secret), encode(fact)))
    assert [each.router for each in loop.reader.read(valkey, {}, 0.0).routers] == ["r1"]


def test_an_older_fact_is_not_believed_again(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    old = valkey.get(names.fact_key("agent", "n1"))
    demo.turn()
    loop.run()
    demo.nodes["n1"].crash(demo.listed(LLAMA)[0])
    demo.turn()
    valkey.set(names.fact_key("agent", "n1"), old)  # type: ignore[arg-type]
    facts = loop.reader.read(valkey, NODES, time.monotonic())
    assert facts.agents["n1"].seq == facts.agents["n2"].seq - 1, "it is the one that was believed last"


def put(valkey: redis.Redis, demo: FakeFleet, boot: str, booted_at: float, seq: int = 1) -> None:
    fact = replace(demo.nodes["n1"].fact(0.0), boot=boot, booted_at=booted_at, seq=seq)
    valkey.set(names.fact_key("agent", "n1"), seal(node_key(demo.secret, "n1"), encode(fact)))


def test_a_fact_of_an_earlier_start_is_not_believed(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    """Not after the key was away, nor by a control process that begins only now."""
    put(valkey, demo, "second", 200.0)
    loop.run()
    valkey.delete(names.fact_key("agent", "n1"))
    loop.run()
    put(valkey, demo, "first", 100.0, seq=9)
    loop.run()
    new_loop().run()
    assert models.Node.objects.get(name="n1").agent_boot == "second"


def test_an_earlier_start_counts_once_the_later_one_is_silent(
    demo: FakeFleet, loop: Loop, valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a node's clock was set back."""
    now = time.monotonic()
    put(valkey, demo, "second", 200.0)
    assert loop.reader.read(valkey, NODES, now).agents["n1"].boot == "second"
    put(valkey, demo, "after", 100.0)
    assert loop.reader.read(valkey, NODES, now + 1).agents["n1"].boot == "second"
    assert loop.reader.read(valkey, NODES, now + names.FACT_TTL_S + 1).agents["n1"].boot == "after"
    put(valkey, demo, "after", 100.0, seq=2)
    assert loop.reader.read(valkey, NODES, now + names.FACT_TTL_S + 2).agents["n1"].seq == 2
    assert sum("its clock was set back" in record.getMessage() for record in caplog.records) == 1


def test_a_fact_that_nobody_renews_counts_as_silence(demo: FakeFleet, loop: Loop, valkey: redis.Redis) -> None:
    assert set(loop.reader.read(valkey, NODES, 1e9).agents) == set()
    demo.turn()
    assert set(loop.reader.read(valkey, NODES, 1e9).agents) == NODES.keys()


def test_a_second_loop_does_not_tick_at_the_same_time(demo: FakeFleet, loop: Loop) -> None:
    with lease("tick", "somebody else", 30.0) as mine:
        assert mine
        before = demo.table()
        models.Model.objects.filter(name=QWEN).update(strict=True)
        loop.run()
        assert demo.table() == before
    loop.run()
    assert demo.table() != before


def test_commands_and_tables_hold_no_secret(demo: FakeFleet) -> None:
    table = demo.table()
    assert table is not None
    text = json.dumps([encode(command) for command in demo.received]) + json.dumps(encode(table))
    assert demo.secret.hex() not in text
    assert all(engine.engine_key == "" for model in table.models for engine in model.engines)


def test_a_scenes_configs_are_the_models_own(demo: FakeFleet) -> None:
    assert [new_model(model).name for model in SCENES["demo"].models] == [LLAMA, QWEN]
    llama = models.Model.objects.get(name=LLAMA)
    assert llama.kv_bytes_per_token == 327_680

"""How long it takes to give a running engine another role, from the commit of the action until it serves in the new role.

`manage.py bench retask [--moves N] [--streams N]`: a whole stack of its own (PostgreSQL, Valkey, control worker, agents, a
router of two processes, six simulated engines of Qwen3-8B on an H100 each), N moves of one engine between the pools one
after another, idle and then under streams. What is counted out is the drain: from when all routers know until the last leg
on the engine has ended.

Limits on a machine that does nothing else: without the drain p99 250 ms idle and 500 ms under load; a table until all
routers use it p99 50 ms. Exit code 1 beyond them.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis

from controlplane.core import names, signing
from controlplane.core.codec import decode
from controlplane.core.protocol import RouterFact, RoutingTable
from controlplane.proof.fleet import Fleet, started

ROUTERS = 2
PAUSE_S = 0.3
STUCK_S = 60.0
Stamp = tuple[int, int]


@dataclass
class Trace:
    """What was heard on Valkey, each with the time when it was heard."""

    tables: list[tuple[float, RoutingTable]] = field(default_factory=list)
    facts: list[tuple[float, RouterFact]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def acked_at(self, stamp: Stamp) -> float | None:
        """When the last router said that it uses this table or a newer one."""
        first: dict[str, float] = {}
        for at, fact in self.facts:
            if (fact.epoch, fact.generation) >= stamp:
                first.setdefault(fact.router, at)
        return max(first.values()) if len(first) >= ROUTERS else None

    def drained_at(self, stamp: Stamp, engine: str) -> float | None:
        """When the last router that uses this table said that nothing is open on the engine (any more)."""
        first: dict[str, float] = {}
        for at, fact in self.facts:
            busy = any(load.engine == engine and (load.in_flight or load.handoffs) for load in fact.loads)
            if (fact.epoch, fact.generation) >= stamp and not busy:
                first.setdefault(fact.router, at)
        return max(first.values()) if len(first) >= ROUTERS else None


def listen(fleet: Fleet, trace: Trace) -> None:
    table_key, router_key = signing.table_key(fleet.secret), signing.router_key(fleet.secret)
    with (
        redis.Redis.from_url(fleet.endpoints.valkey_url) as client,
        client.pubsub(ignore_subscribe_messages=True) as channel,
    ):
        channel.subscribe(names.TABLE_CHANNEL, names.FACT_CHANNEL)
        while True:
            try:
                message = channel.get_message(timeout=5.0)
            except redis.RedisError:
                return  # the stack is being stopped
            if message is None:
                continue
            at, said = time.time(), message["data"].decode()
            is_table = message["channel"].decode() == names.TABLE_CHANNEL
            if not is_table and not said.startswith("router:"):
                continue
            value = client.get(names.TABLE_KEY if is_table else f"fact:{said}")
            if not isinstance(value, bytes):
                continue
            with trace.changed:
                if is_table:
                    trace.tables.append((at, decode(RoutingTable, signing.unseal(table_key, value))))
                else:
                    trace.facts.append((at, decode(RouterFact, signing.unseal(router_key, value))))
                trace.changed.notify_all()


@dataclass
class Move:
    """Seconds. `whole`: from the commit to the table with the new role, without the drain."""

    published: float
    acked: float
    drain: float
    served: float
    whole: float
    new_acked: float


def one_move(model: str, prefill: int, engines: int, trace: Trace) -> Move:
    """Move one engine by a rebalance, and read off what happened when."""
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.core.lifecycle import ENDED
    from controlplane.core.retask import PATIENCE_S

    with trace.changed:
        trace.tables.clear()
        trace.facts.clear()
    operation = actions.rebalance(
        Actor.command_line(), model, {"prefill": prefill, "decode": engines - prefill}, reason="benchmark"
    )
    committed = time.time()
    while operation.state not in ENDED:
        if time.time() - committed > STUCK_S:
            sys.exit(f"operation {operation.pk} has not ended after {STUCK_S:.0f} s: {operation.state}")
        time.sleep(0.05)
        operation.refresh_from_db(fields=["state", "outcome"])
    moved = list(operation.steps.values_list("engine", flat=True))
    if operation.state != "done" or len(moved) != 1:
        sys.exit(f"operation {operation.pk} is {operation.state} with {len(moved)} engines moved: {operation.outcome}")
    with trace.changed:
        out_at, out = next((at, table) for at, table in trace.tables if not is_ready(table, moved[0]))
        in_at, back = next((at, table) for at, table in trace.tables if at > out_at and is_ready(table, moved[0]))
        trace.changed.wait_for(lambda: trace.acked_at(back.stamp) is not None, STUCK_S)
        acked, new_acked = trace.acked_at(out.stamp), trace.acked_at(back.stamp)
        if acked is None or new_acked is None:
            sys.exit("not all routers were heard")
        drained = max(acked, min(trace.drained_at(out.stamp, moved[0]) or in_at, out_at + PATIENCE_S))
    return Move(
        published=out_at - committed,
        acked=acked - out_at,
        drain=drained - acked,
        served=in_at - drained,
        whole=in_at - committed - (drained - acked),
        new_acked=new_acked - in_at,
    )


def is_ready(table: RoutingTable, engine: str) -> bool:
    return any(each.id == engine and each.state == "ready" for model in table.models for each in model.engines)


def at_full_speed(model: str) -> None:
    """The scene's engines are slowed down, for streams to last; these shall be as quick as what they simulate."""
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.core.lifecycle import ENDED
    from controlplane.fleet import models

    args = models.Model.objects.get(name=model).engine_args | {"speed": 1.0}
    operation = actions.roll_out(Actor.command_line(), model, actions.RollOut(engine_args=args), reason="benchmark")
    while operation.state not in ENDED:
        time.sleep(0.5)
        operation.refresh_from_db(fields=["state", "outcome"])
    if operation.state != "done":
        sys.exit(f"the engines were not replaced: {operation.outcome}")


def sizes(engines: int) -> Iterator[int]:
    """Of the prefill pool: one engine moves each time, forwards and backwards."""
    while True:
        yield from (engines // 2 + 1, engines // 2, engines // 2 - 1, engines // 2)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def show(title: str, moves: list[Move]) -> tuple[float, float]:
    """Prints the figures; p99 of the whole and of tables until all routers use them, seconds."""
    tables = [move.acked for move in moves] + [move.new_acked for move in moves]
    print(f"\n{title}: {len(moves)} moves")
    for what, values in (
        ("commit -> table without the engine", [move.published for move in moves]),
        ("a table -> used by all routers", tables),
        ("(drain, counted out)", [move.drain for move in moves]),
        ("known and drained -> table with the new role", [move.served for move in moves]),
        ("whole, without the drain", [move.whole for move in moves]),
    ):
        p50, p90, p99 = (1000 * quantile(values, share) for share in (0.5, 0.9, 0.99))
        print(f"  {what:46} p50 {p50:7.1f}   p90 {p90:7.1f}   p99 {p99:7.1f} ms")
    return quantile([move.whole for move in moves], 0.99), quantile(tables, 0.99)


@contextmanager
def streams(fleet: Fleet, model: str, block_size: int, count: int) -> Iterator[None]:
    """So many open all the time; none may be lost."""
    from controlplane.proof.questions import simulated_questions
    from controlplane.proof.streams import Streams

    open_streams = Streams("127.0.0.1", fleet.router_port, simulated_questions(model, block_size, random.Random(1)), count)
    open_streams.start()
    try:
        while open_streams.ended < count:
            time.sleep(0.1)
        yield
        open_streams.finish()
        print(f"  {open_streams.ended} streams ended meanwhile, {open_streams.lost} lost")
        if open_streams.lost:
            sys.exit(f"lost: {open_streams.losses[0]}")
    finally:
        open_streams.abandon()


def main() -> int:
    parser = argparse.ArgumentParser(prog="manage.py bench retask")
    parser.add_argument("--moves", type=int, default=100, help="idle, and as many under load (default 100)")
    parser.add_argument("--streams", type=int, default=16, help="open at all times under load (default 16)")
    options = parser.parse_args()
    with started("proof", lambda _line: None, "--router-processes", str(ROUTERS)) as fleet:
        fleet.adopt_environment()
        import django

        django.setup()
        from controlplane.fleet import models

        row = models.Model.objects.get()
        at_full_speed(row.name)
        engines = row.engines.filter(wanted=True).count()
        trace = Trace()
        threading.Thread(target=listen, args=(fleet, trace), daemon=True).start()
        steps = sizes(engines)

        def moves() -> list[Move]:
            made = []
            for _ in range(options.moves):
                time.sleep(random.uniform(PAUSE_S, 2 * PAUSE_S))
                made.append(one_move(row.name, next(steps), engines, trace))
            return made

        idle = show("idle", moves())
        with streams(fleet, row.name, row.block_size, options.streams):
            loaded = show(f"under {options.streams} streams", moves())
    held = idle[0] <= 0.25 and loaded[0] <= 0.5 and max(idle[1], loaded[1]) <= 0.05
    print("\nall limits hold" if held else "\nnot all limits hold")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

"""One tick of the control loop: facts -> rows -> plan -> rows and commands -> routing table -> operations.

Level-triggered: every tick computes everything from rows and facts, so a tick may die at any line or be skipped, and the
next one goes on. What is kept between ticks in this process (Memory) only saves work or waiting; losing it is harmless.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass, field, replace

import redis
from django.conf import settings
from django.db import DataError, IntegrityError, ProgrammingError, close_old_connections
from django.db import Error as DatabaseError
from kombu.exceptions import OperationalError as BrokerError

from controlplane.common.files import BadKey
from controlplane.config import config
from controlplane.control.apply import apply, send_all
from controlplane.control.canaries import advance_canaries
from controlplane.control.facts import Boot, FactReader, Facts
from controlplane.control.gather import gather
from controlplane.control.leases import lease
from controlplane.control.metrics import Seen, TickCounts, TickEnd
from controlplane.control.operations import advance_operations, forget_retired, read_open
from controlplane.control.publish import TablePublisher
from controlplane.control.record import record_engines, record_losses, record_nodes
from controlplane.core import names
from controlplane.core.plan import Plan
from controlplane.core.progress import Scene
from controlplane.core.reconcile import RESEND_S, reconcile
from controlplane.core.signing import router_key
from controlplane.core.world import DrainMark, Sent, World
from controlplane.fleet import models

log = logging.getLogger(__name__)

LEASE_S = 5.0
"""How long a killed worker's tick keeps others out."""
TURN_S = 0.05
TURNS = 20
"""While another worker ticks, ours waits for its turn, so often: what it was asked for may be news to both."""
PASSES = 4
"""A tick plans again after it changed rows, at most this often, so that a chain of steps does not cost a beat each."""


@dataclass
class Memory:
    drains: dict[str, DrainMark] = field(default_factory=dict)
    sent: dict[Sent, float] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def forget_old(self, now: float) -> None:
        for key in [key for key, at in self.sent.items() if now - at > RESEND_S]:
            del self.sent[key]


class Loop:
    """The control loop of this process. `run` may be called from any thread at any time."""

    def __init__(self) -> None:
        self.holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.memory = Memory()
        self.keys = secret = config().fleet_keys()
        self.reader = FactReader(secret)
        self.valkey = redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=3, socket_connect_timeout=2)
        self.table = TablePublisher(self.valkey, secret)
        self._router_key = router_key(secret)
        self.link_since: float | None = None
        self.ticked_s = 0.0
        """Seconds of this process's CPU that ticks have taken, ever."""
        self.counts = TickCounts()
        self._busy = threading.Lock()
        self._again = threading.Event()
        self._trouble = ""

    def run(self) -> None:
        """Tick now. If a tick of this process is running already, it is followed by one more instead."""
        self._again.set()
        while self._again.is_set() and self._busy.acquire(blocking=False):
            began = time.thread_time()
            try:
                self._again.clear()
                self._refresh_keys()
                self._guarded_tick()
            finally:
                self.ticked_s += time.thread_time() - began
                self._busy.release()

    def _refresh_keys(self) -> None:
        try:
            self.keys.refresh()
        except BadKey as error:
            log.error("the fleet secret is used as it was: %s", error)

    def _guarded_tick(self) -> None:
        """A tick that survives PostgreSQL and Valkey going away: it says so once and leaves the rest to the next beat."""
        end: TickEnd = "failed"
        try:
            close_old_connections()
            end = self._tick_in_turn()
        except redis.RedisError as error:
            self.link_since = None
            self._say(f"Valkey cannot be used: {type(error).__name__}")
        except BrokerError as error:
            self._say(f"commands cannot be sent: {type(error).__name__}")
        except DatabaseError as error:
            refused = isinstance(error, DataError | IntegrityError | ProgrammingError)
            what = "PostgreSQL refused what a tick wrote" if refused else "PostgreSQL cannot be used"
            self._say(f"{what}: {type(error).__name__}: {str(error).partition(chr(10))[0]:.200}")
            close_old_connections()
        else:
            self._say("")
        self.counts.ends[end] += 1

    def _tick_in_turn(self) -> TickEnd:
        for _ in range(TURNS):
            with lease("tick", self.holder, LEASE_S) as mine:
                if mine:
                    with self.counts.seconds.time():
                        self.tick()
                    return "done"
            time.sleep(TURN_S)
        return "waited"

    def tick(self) -> Plan:
        """One whole tick; the caller holds the lease. Returns the last pass's plan."""
        facts = self._read_facts()
        facts = record_nodes(facts, self.memory.said)
        for _ in range(PASSES):
            operations = read_open()
            world = record_engines(record_losses(self._gather(facts)), self.memory.said)
            plan = reconcile(world)
            self.memory.drains = dict(plan.drains)
            if not apply(plan):
                break
        table = self.table.publish(world)  # first: routers need it soonest, and without a broker for commands too
        send_all(plan, self.memory.sent)
        # Progress is judged against the table just published, not the one this tick began with.
        world = replace(world, stamp=table.stamp, serving_in_table=table.serving)
        scene = Scene(world, plan.waiting, table.roles, table.modes, plan.problems)
        if advance_operations(operations, scene):
            self._again.set()  # what is desired has changed: plan for it now
        forget_retired()
        advance_canaries(self.valkey, self._router_key, self.memory.said)
        self.counts.seen = Seen(world, table.stamp, time.time())
        self.valkey.set(names.CONTROL_KEY, f"{time.time():.3f}")
        return plan

    def _read_facts(self) -> Facts:
        rows = models.Node.objects.values_list("name", "agent_boot", "agent_booted_at")
        nodes = {name: Boot(boot, booted_at) for name, boot, booted_at in rows}
        facts = self.reader.read(self.valkey, nodes, time.monotonic())
        if self.link_since is None:
            self.link_since = time.time()
        return facts

    def _gather(self, facts: Facts) -> World:
        now = time.time()
        self.memory.forget_old(now)
        since = self.link_since if self.link_since is not None else now
        return gather(facts, now=now, link_since=since, drains=self.memory.drains, sent=self.memory.sent)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.log(logging.WARNING if trouble else logging.INFO, "%s", trouble or "the control loop works again")
            self._trouble = trouble

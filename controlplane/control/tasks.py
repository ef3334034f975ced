"""Celery tasks of the control plane. Each is thin: it calls one thing."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

from celery.signals import worker_init, worker_ready, worker_shutting_down
from django.db import Error as DatabaseError
from django.db import close_old_connections
from prometheus_client.metrics_core import Metric

from controlplane.celery import app
from controlplane.common.files import BadKey
from controlplane.common.metrics import registry, serve
from controlplane.common.places import read_place
from controlplane.common.valkey import UNREACHABLE, describe
from controlplane.config import config
from controlplane.control import commands
from controlplane.control.admission import Admission
from controlplane.control.alerting.deliver import Notifier
from controlplane.control.alerting.watch import Watcher
from controlplane.control.auditing.notes import tell_left_out
from controlplane.control.auditing.seals import run_sealing
from controlplane.control.loop import Loop
from controlplane.control.measured import measure_finished
from controlplane.control.metrics import control_series
from controlplane.control.pacer import BEAT_SCHEDULE, Pacer
from controlplane.control.planning.tick import Planner
from controlplane.control.probing import Prober
from controlplane.telemetry.cost_hours import roll_up_costs
from controlplane.telemetry.hours import roll_up, roll_up_engines
from controlplane.telemetry.partitions import Partitions, keep

log = logging.getLogger(__name__)
app.conf.beat_schedule = {**app.conf.beat_schedule, **BEAT_SCHEDULE}
_pacer = Pacer()
_prober = Prober()
_notifier = Notifier()
_sealer = f"{os.getpid()}-{secrets.token_hex(4)}"
for _chatty in ("celery.app.trace", "celery.worker.strategy", "celery.beat"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)  # a tick every second is no news; what it does is logged by itself


@cache
def the_loop() -> Loop:
    """This process's loop, made at the first tick."""
    return Loop()


@app.task(name=commands.TICK)  # type: ignore[untyped-decorator]
def tick() -> None:
    the_loop().run()


@app.task(name=commands.PROBE_PAIR)  # type: ignore[untyped-decorator]
def probe_pair(pair: int) -> None:
    """Begins the probe and returns at once: it must take no thread from ticks."""
    _prober.start(pair)


@cache
def the_watcher() -> Watcher:
    return Watcher()


@app.task(name=commands.WATCH)  # type: ignore[untyped-decorator]
def watch() -> None:
    """Look for alerts, then tell whoever is owed a message, beside the worker's tasks."""
    the_watcher().run()
    _notifier.start()


@app.task(name=commands.NOTIFY)  # type: ignore[untyped-decorator]
def notify() -> None:
    _notifier.start()


@cache
def the_planner() -> Planner:
    return Planner()


@app.task(name=commands.PLAN)  # type: ignore[untyped-decorator]
def plan() -> None:
    """A look of the planner, whose windows are minutes."""
    the_planner().run()


@app.task(name=commands.MEASURE)  # type: ignore[untyped-decorator]
def measure() -> None:
    """What PostgreSQL cannot tell now is asked for again a minute later."""
    try:
        close_old_connections()
        measure_finished()
    except DatabaseError as error:
        log.warning("finished operations are not measured now: %s", type(error).__name__)


@cache
def the_admission() -> Admission:
    return Admission()


@app.task(name=commands.ADMIT)  # type: ignore[untyped-decorator]
def admit() -> None:
    """Who asks to join waits while a server is away."""
    try:
        close_old_connections()
        the_admission().run()
    except DatabaseError as error:
        log.warning("nobody is let in now: %s", type(error).__name__)
    except UNREACHABLE as error:
        log.warning("nobody is let in now: %s", describe(error))


@app.task(name=commands.SEAL_AUDIT)  # type: ignore[untyped-decorator]
def seal_audit() -> None:
    """Entries stay unsealed for a minute longer where PostgreSQL cannot be used now."""
    try:
        close_old_connections()
        tell_left_out()
        run_sealing(_sealer)
    except DatabaseError as error:
        log.warning("the audit is not sealed now: %s", type(error).__name__)


@app.task(name=commands.ROLL_UP_HOURS)  # type: ignore[untyped-decorator]
def roll_up_hours() -> None:
    """What PostgreSQL cannot do now is tried again a minute later; until then queries take the minutes."""
    try:
        close_old_connections()
        partitions = Partitions(keep(config()))
        roll_up(partitions)
        roll_up_costs(partitions)
        roll_up_engines(partitions)
    except DatabaseError as error:
        log.warning("hours of telemetry are not rolled up now: %s", type(error).__name__)


@worker_init.connect  # type: ignore[untyped-decorator]
def _refuse_without_secret(**_: Any) -> None:
    try:
        config().fleet_secret()
    except BadKey as error:
        sys.exit(f"no fact could be believed and no command signed: {error}")


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_pacer(**_: Any) -> None:
    loop = the_loop()
    _pacer.start(app, lambda: loop.ticked_s)
    _serve_metrics()


@cache
def _serve_metrics() -> None:
    """Once, however often the worker reconnects to its broker."""
    if not (place := config().metrics):
        return
    loop = the_loop()

    def collect() -> Iterable[Metric]:
        return control_series(loop.counts, loop.ticked_s, loop.reader.ages(time.monotonic()), loop.reader.refused)

    serve(read_place(place), registry(collect))


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_pacer(**_: Any) -> None:
    _pacer.stop()

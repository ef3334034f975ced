"""The agent's Celery side: a worker on this node's queue alone, its tasks, and the boot steps that hold the agent.

Tasks parse nothing and decide nothing; they hand a signed envelope to the agent. `start`, `stop`, `drain` answer to nobody.
`list_engines` and `tail_log` return `{"engines": [...]}`, `{"engine", "incarnation", "lines"}` or `{"error": why}`; a caller
that wants the result sends them with `ignore_result=False`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

from celery import Celery, bootsteps
from celery.signals import setup_logging, worker_shutting_down
from celery.worker.state import maybe_shutdown

from controlplane.common.broker import TRANSPORT
from controlplane.common.consumer import SoundConsumer
from controlplane.common.valkey import CELERY, away, for_celery
from controlplane.core import names
from workers.node import Node

log = logging.getLogger(__name__)

EXIT_WITHIN_S = 2.5
STOP_ALL_GRACE_S = 3.0
RECONNECT_WITHIN_S = 2.0


class NodeApp(Celery):  # type: ignore[misc]  # Celery has no types
    """Celery with the node it works for."""

    node: Node


class NodeConsumer(SoundConsumer):
    """Celery waits up to 30 s between attempts to reach its broker; a node must be back sooner."""

    def ensure_connected(self, conn: Any) -> Any:
        told = False

        def tell(error: Exception, _interval: float) -> None:
            nonlocal told
            if not told:
                log.warning("%s: commands wait", away(error))
            told = True

        conn = conn.ensure_connection(
            tell, None, callback=maybe_shutdown, interval_start=0.2, interval_step=0.4, interval_max=RECONNECT_WITHIN_S
        )
        self.first_connection_attempt = False
        return conn


class AgentStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Adopts engines before the first command is taken; lets go of them after the last."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        node: Node = worker.app.node
        node.start()
        signal.signal(signal.SIGUSR1, lambda *_: _stop_engines_then_exit(node))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Celery would run itself again, without `-m workers`

    def stop(self, worker: Any) -> None:
        worker.app.node.stop()


class SamplerStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Telemetry, once a second."""

    requires = (AgentStep,)

    def start(self, worker: Any) -> None:
        worker.app.node.start_sampling()

    def stop(self, worker: Any) -> None:
        worker.app.node.stop_sampling()


def make_app(node: Node) -> NodeApp:
    """The worker's application, with the tasks of names.TASK_*."""
    app = NodeApp("workers")
    app.node = node
    queue = names.node_queue(node.config.node)
    # Keys of this node's own: its user of the broker may touch no others (core.joining).
    own = {
        "unacked_key": f"{queue}.unacked",
        "unacked_index_key": f"{queue}.unacked_index",
        "unacked_mutex_key": f"{queue}.unacked_mutex",
        "priority_steps": [0],
    }
    app.conf.update(
        CELERY,
        broker_url=for_celery(node.config.broker_url),
        broker_transport=TRANSPORT,
        broker_transport_options={**CELERY["broker_transport_options"], **own},
        result_backend=for_celery(node.config.broker_url),
        task_default_queue=queue,
        task_create_missing_queues=True,
        worker_consumer=NodeConsumer,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_send_sent_event=False,
        worker_send_task_events=False,
    )
    _add_tasks(app, node)
    app.steps["worker"].update((AgentStep, SamplerStep))
    return app


def _add_tasks(app: NodeApp, node: Node) -> None:
    def start(envelope: object) -> None:
        node.obey(envelope, "start")

    def stop(envelope: object) -> None:
        node.obey(envelope, "stop")

    def drain(envelope: object) -> None:
        node.obey(envelope, "drain", "undrain")

    def list_engines(envelope: object) -> dict[str, Any]:
        return node.obey(envelope, "list_engines")

    def tail_log(envelope: object) -> dict[str, Any]:
        return node.obey(envelope, "tail_log")

    def rekey(envelope: object) -> dict[str, Any]:
        return node.obey(envelope, "rekey")

    def link(envelope: object) -> dict[str, Any]:
        return node.measure_link(envelope)

    for name, function, silent in (
        (names.TASK_START_ENGINE, start, True),
        (names.TASK_STOP_ENGINE, stop, True),
        (names.TASK_DRAIN_ENGINE, drain, True),
        (names.TASK_LIST_ENGINES, list_engines, False),
        (names.TASK_TAIL_LOG, tail_log, False),
        (names.TASK_LINK, link, False),
        (names.TASK_REKEY, rekey, False),
    ):
        app.task(function, name=name, ignore_result=silent)


def run(node: Node) -> int:
    """Works until SIGTERM (engines run on) or SIGUSR1 (engines are stopped first). Returns the exit code."""
    setup_logging.connect(_keep_our_logging)
    worker_shutting_down.connect(_exit_soon)
    app = make_app(node)
    worker = app.Worker(
        hostname=f"node@{node.config.node}",
        queues=[names.node_queue(node.config.node)],
        pool="threads",
        concurrency=2,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="INFO",
    )
    worker.start()
    return int(worker.exitcode or 0)


def _keep_our_logging(**_: Any) -> None:
    """Celery leaves logging alone when somebody listens to its signal."""


def _exit_soon(**_: Any) -> None:
    """Celery waits for running tasks and for its broker; neither may hold up an exit, since a start or stop that was
    begun is on disk."""
    timer = threading.Timer(EXIT_WITHIN_S, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _stop_engines_then_exit(node: Node) -> None:
    def then_exit(stopping: Future[None]) -> None:
        if error := stopping.exception():
            log.error("engines may be left running: stopping them failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)

    log.info("stopping all engines")
    node.stop_engines(STOP_ALL_GRACE_S).add_done_callback(then_exit)

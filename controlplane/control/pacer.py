"""What makes the control worker tick: Celery's beat and a listener for announced facts, both as threads of the worker.

Beat is a thread of the worker and not the child process of `-B`, which costs 50 MB and outlives a killed worker. Several
workers may all have a beat, of which one sends (control.beat); the lease lets one tick at a time through.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import redis
from celery.beat import EmbeddedService
from django.conf import settings

from controlplane.control import commands
from controlplane.core import names

log = logging.getLogger(__name__)

BEAT_S = 2.0
COALESCE_S = 0.25
"""A tick is asked for this long after an announcement, so that those that follow closely share it."""
MAX_BACK_OFF_S = 5.0
MEASURE_S = 60.0
BEAT_SCHEDULE = {
    "tick": {"task": commands.TICK, "schedule": BEAT_S, "options": {"expires": 2 * BEAT_S}},
    "measure": {"task": commands.MEASURE, "schedule": MEASURE_S, "options": {"expires": MEASURE_S}},
}


class FactListener(threading.Thread):
    """Turns announcements on the fact channel into ticks, at most one each COALESCE_S. Reconnects for ever."""

    def __init__(self) -> None:
        super().__init__(name="fact-listener", daemon=True)
        self._stop_asked = threading.Event()
        self._back_off_s = 0.0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                if not self._back_off_s:
                    log.warning("announcements of facts are not heard for now: %s", type(error).__name__)
                self._back_off_s = min(MAX_BACK_OFF_S, self._back_off_s * 2 or COALESCE_S)
                self._stop_asked.wait(self._back_off_s)

    def _listen(self) -> None:
        client = redis.Redis.from_url(
            settings.VALKEY_URL, socket_connect_timeout=2, socket_timeout=5, health_check_interval=10
        )
        with client, client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(names.FACT_CHANNEL)
            while not self._stop_asked.is_set():
                message = channel.get_message(timeout=1.0)
                if self._back_off_s:
                    log.info("announcements of facts are heard again")
                    self._back_off_s = 0.0
                if message is None:
                    continue
                self._stop_asked.wait(COALESCE_S)
                while channel.get_message(timeout=0) is not None:
                    pass  # told by the tick that is asked for now
                commands.wake()

    def stop(self) -> None:
        self._stop_asked.set()


class Pacer:
    """The threads of one worker."""

    def __init__(self) -> None:
        self._threads: list[Any] = []

    def start(self, app: Any) -> None:
        """Start once; called again when the worker has reconnected to its broker."""
        if self._threads:
            return
        self._threads = [
            FactListener(),
            EmbeddedService(app, thread=True, scheduler_cls="controlplane.control.beat:OneBeat"),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask them to end; they are daemons, so nobody waits for one that hangs in a call to a dead broker."""
        for thread in self._threads:
            if isinstance(thread, FactListener):
                thread.stop()

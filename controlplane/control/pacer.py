"""What makes the control worker tick: Celery's beat and a listener for announced facts, both as threads of the worker.

Beat is a thread of the worker and not the child process of `-B`, which costs 50 MB and outlives a killed worker. Several
workers may all have a beat; the lease lets one tick at a time through.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from celery.beat import EmbeddedService
from django.conf import settings

from controlplane.control import commands
from controlplane.core import names

log = logging.getLogger(__name__)

BEAT_S = 2.0
GATHER_S = 0.005
"""A tick is asked for this long after an announcement, so that those of several routers to one table share it."""
LONGEST_REST_S = 2.0
FIRST_BACK_OFF_S = 0.25
MAX_BACK_OFF_S = 5.0
MINUTE_S = 60.0
WATCH_S = 10.0
"""Between two looks for alerts."""
BEAT_SCHEDULE = {
    "tick": {"task": commands.TICK, "schedule": BEAT_S, "options": {"expires": 2 * BEAT_S}},
    "admit": {"task": commands.ADMIT, "schedule": BEAT_S, "options": {"expires": 2 * BEAT_S}},
    "watch": {"task": commands.WATCH, "schedule": WATCH_S, "options": {"expires": WATCH_S}},
    "plan": {"task": commands.PLAN, "schedule": MINUTE_S, "options": {"expires": MINUTE_S}},
    "measure": {"task": commands.MEASURE, "schedule": MINUTE_S, "options": {"expires": MINUTE_S}},
    "seal_audit": {"task": commands.SEAL_AUDIT, "schedule": MINUTE_S, "options": {"expires": MINUTE_S}},
    "roll_up_hours": {"task": commands.ROLL_UP_HOURS, "schedule": MINUTE_S, "options": {"expires": MINUTE_S}},
}


class Budget:
    """CPU time that ticks may take: SHARE of a core in the long run, in bursts of BURST_S. So a change that goes through
    several ticks waits for none, and a fleet that announces all the time costs half a core."""

    SHARE = 0.5
    BURST_S = 1.0

    def __init__(self, now: float) -> None:
        self._debt_s, self._at = 0.0, now

    def rest(self, spent_s: float, now: float) -> float:
        """Seconds to wait, when ticks have taken `spent_s` of CPU since the last call."""
        self._debt_s = max(0.0, self._debt_s - (now - self._at) * self.SHARE) + spent_s
        self._at = now
        return min(LONGEST_REST_S, max(0.0, self._debt_s - self.BURST_S) / self.SHARE)


class FactListener(threading.Thread):
    """Turns announcements on the fact channel into ticks, at once but within the budget. Reconnects for ever."""

    def __init__(self, ticked_s: Callable[[], float]) -> None:
        """`ticked_s`: seconds of CPU that ticks of this process have taken, ever."""
        super().__init__(name="fact-listener", daemon=True)
        self._ticked_s = ticked_s
        self._stop_asked = threading.Event()
        self._back_off_s = 0.0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                if not self._back_off_s:
                    log.warning("announcements of facts are not heard for now: %s", type(error).__name__)
                self._back_off_s = min(MAX_BACK_OFF_S, self._back_off_s * 2 or FIRST_BACK_OFF_S)
                self._stop_asked.wait(self._back_off_s)

    def _listen(self) -> None:
        client = redis.Redis.from_url(
            settings.VALKEY_URL, socket_connect_timeout=2, socket_timeout=5, health_check_interval=10
        )
        budget, ticked_s = Budget(time.monotonic()), self._ticked_s()
        with client, client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(names.FACT_CHANNEL)
            while not self._stop_asked.is_set():
                message = channel.get_message(timeout=1.0)
                if self._back_off_s:
                    log.info("announcements of facts are heard again")
                    self._back_off_s = 0.0
                if message is None:
                    continue
                before, ticked_s = ticked_s, self._ticked_s()
                self._stop_asked.wait(GATHER_S + budget.rest(ticked_s - before, time.monotonic()))
                while channel.get_message(timeout=0) is not None:
                    pass  # told by the tick that is asked for now
                commands.wake()

    def stop(self) -> None:
        self._stop_asked.set()


class Pacer:
    """The threads of one worker."""

    def __init__(self) -> None:
        self._threads: list[Any] = []

    def start(self, app: Any, ticked_s: Callable[[], float]) -> None:
        """Start once; called again when the worker has reconnected to its broker. `ticked_s` as FactListener's."""
        if self._threads:
            return
        beat = EmbeddedService(app, thread=True, scheduler_cls="controlplane.control.beat:OneBeat")
        self._threads = [FactListener(ticked_s), beat]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask them to end; they are daemons, so nobody waits for one that hangs in a call to a dead broker."""
        for thread in self._threads:
            if isinstance(thread, FactListener):
                thread.stop()

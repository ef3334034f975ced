"""The thread that holds an agent's event loop, and how Celery's threads reach it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from prometheus_client.metrics_core import Metric

from controlplane.common.metrics import registry, serve
from workers import links
from workers.agent import Agent
from workers.commands import CommandRefused, open_command
from workers.config import AgentConfig
from workers.engines.base import Driver
from workers.pages import agent_series
from workers.probes import Probe
from workers.sampler import Sampler

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_TIMEOUT_S = 60.0


class Node:
    """An agent and its sampler in a thread of their own. `start` and `stop` are called by Celery's boot steps."""

    def __init__(self, config: AgentConfig, drivers: Mapping[str, Driver], probe: Probe) -> None:
        self.config = config
        self._probe = probe
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent", daemon=True)
        self._agent = Agent(config, drivers, probe.gpus(), crash)
        self._sampling: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        """Returns when engines are adopted. Raises OSError."""
        self._thread.start()
        self.call(self._agent.open())

    def start_sampling(self) -> None:
        sampler, agent, gpus = Sampler(self.config, self._agent, self._probe), self._agent, self._probe.gpus()
        self._sampling = asyncio.run_coroutine_threadsafe(sampler.run(), self._loop)
        self._sampling.add_done_callback(_after_sampling)

        def collect() -> Iterator[Metric]:
            return agent_series(time.time(), list(agent.engines.values()), gpus, agent.counts, sampler.sampled)

        if self.config.metrics is not None:
            serve(self.config.metrics, registry(collect))

    def stop_sampling(self) -> None:
        if self._sampling:
            self._sampling.cancel()

    def stop(self) -> None:
        """Lets the engines run on."""
        if self._thread.is_alive():
            self.call(self._agent.close(), 2.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)

    def obey(self, envelope: object, *verbs: str) -> dict[str, Any]:
        """See Agent.obey. From any other thread."""
        return self.call(self._agent.obey(envelope, frozenset(verbs)))

    def measure_link(self, envelope: object) -> dict[str, Any]:
        """See workers.links. In the calling thread, for some seconds; answers as `obey` does."""
        try:
            command = open_command(envelope, self.config.node_key, self.config.node, ("link_listen", "link_send"))
            if command.verb == "link_listen":
                return {"port": links.listen(self.config.address, command.token)}
            return links.send(command.peer, command.token)
        except (CommandRefused, links.LinkFailed) as refusal:
            log.warning("a link was not measured: %s", refusal)
            return {"error": str(refusal)}

    def stop_engines(self, grace_s: float) -> concurrent.futures.Future[None]:
        """Begins to stop all engines; the future is done when none is left. Safe in a signal handler."""
        return asyncio.run_coroutine_threadsafe(self._agent.stop_all(grace_s), self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


def crash(error: BaseException) -> None:
    """Ends the agent at once because of an error that nobody foresaw. Its supervisor starts it again and it adopts its
    engines: that is safer than going on half alive."""
    log.critical("the agent ends because of an error", exc_info=error)
    os._exit(70)


def _after_sampling(sampling: concurrent.futures.Future[None]) -> None:
    error = None if sampling.cancelled() else sampling.exception()
    if error:
        crash(error)

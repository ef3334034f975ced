"""What is asked of an engine beside generation, under its key alone: its faults, and vLLM's /reset_prefix_cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs

import orjson

from workers.engines.simulated import api, faults
from workers.engines.simulated.api import ApiError
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.faults import KINDS, FaultsRefused
from workers.engines.simulated.http import Exchange

FAULTS_PATH = "/twinpool/faults"
RESET_PATH = "/reset_prefix_cache"

Route = Callable[[Exchange], None]


class Host(Protocol):
    """The process around the engine. None of these returns to a caller who is still there to see it, but `freeze`."""

    def die(self) -> None: ...

    def restart(self, down_s: float) -> None: ...

    def freeze(self, seconds: float) -> None: ...


class Admin:
    """`frozen` is the metrics page that a fault keeps showing, if one does."""

    def __init__(self, engine: Engine, host: Host) -> None:
        self._engine, self._host = engine, host
        self.frozen: bytes | None = None
        self.routes: Mapping[str, Mapping[str, Route]] = {
            FAULTS_PATH: {"GET": self._report, "POST": self._begin, "DELETE": self._clear},
            RESET_PATH: {"POST": self._reset_prefix_cache},
        }

    # --- faults -----------------------------------------------------------------------------------------------------------

    def _report(self, exchange: Exchange) -> None:
        self._answer(exchange, {"faults": self._engine.faults.report(self._engine.now())})

    def _begin(self, exchange: Exchange) -> None:
        """Answered first: some faults leave nobody who could."""
        try:
            wanted = faults.read(api.read_body(exchange.body))
        except FaultsRefused as refusal:
            error = {"message": str(refusal), "type": "BadRequestError", "param": refusal.problems[0].field, "code": 400}
            problems = [problem._asdict() for problem in refusal.problems]
            exchange.answer(400, orjson.dumps({"error": error, "problems": problems}))
            return
        page = self._engine.metrics_page().encode() if "stale_metrics" in wanted else None
        self._engine.begin_faults(wanted)
        self.frozen = page or self.frozen
        self._report(exchange)
        for name in ("hang", "restart", "die"):
            if name in wanted:
                self._engine.clock.call_later(wanted[name].get("after_s", 0.0), self._strike_process, name, wanted[name])

    def _strike_process(self, name: str, values: Mapping[str, Any]) -> None:
        if name == "die":
            self._host.die()
        elif name == "restart":
            self._host.restart(values.get("down_s", 0.0))
        elif values.get("what") == "process":
            self._host.freeze(values.get("duration_s", math.inf))

    def _clear(self, exchange: Exchange) -> None:
        """All, or the one that ?fault= names."""
        name = parse_qs(exchange.query).get("fault", [None])[0]
        if name is not None and name not in KINDS:
            raise ApiError(400, f"{name:.60} is no fault; faults: {', '.join(sorted(KINDS))}", "fault")
        self._engine.clear_faults(name)
        self._report(exchange)

    def metrics(self) -> bytes:
        """The metrics page, old if a fault wants that."""
        if self.frozen and self._engine.faults.get("stale_metrics", self._engine.now()) is None:
            self.frozen = None
        return self.frozen or self._engine.metrics_page().encode()

    # --- vLLM's development routes ----------------------------------------------------------------------------------------

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        """As vLLM's: `success` is false while requests hold blocks, unless ?reset_running_requests=true sends them back to
        the queue; with blocks that are loading or held for a peer that fails with 500."""
        options = parse_qs(exchange.query)
        running = options.get("reset_running_requests", [""])[0].lower() in ("true", "1", "on", "yes")
        done = self._engine.reset_prefix_cache(running)
        if running and not done:
            raise ApiError(500, "Failed to reset KV cache even when all the running requests are preempted.")
        self._answer(exchange, {"success": done})

    def _answer(self, exchange: Exchange, document: Mapping[str, Any]) -> None:
        exchange.answer(200, orjson.dumps(document))

"""The giving end of KV handoff: serves peers on the side port, and divides the outgoing link among their transfers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.engines.simulated import content
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.gang import Leader
from workers.engines.simulated.wire import BadMessage, Side, text, whole, wholes


class KvSource:
    """A destination greets and learns the engine id, starts transfers under numbers of its own, is told the rate each may
    use whenever that changes, reads the contents when the time is over, and says when it is done with an offer."""

    def __init__(self, engine: Engine, bytes_per_s: float, gang: Leader | None = None) -> None:
        self._engine, self._gang = engine, gang
        self._bytes_per_s = bytes_per_s
        self._active: dict[tuple[Side, int], tuple[str, list[int]]] = {}

    def connection(self) -> Side:
        """The protocol of a new side connection."""
        return Side(self._message, self._closed)

    def _message(self, side: Side, message: Mapping[str, Any]) -> None:
        match text(message, "op"):
            case "hello":
                side.send("hello", engine=self._engine.engine_id)
            case "start":
                transfer = side, whole(message, "transfer")
                self._active[transfer] = text(message, "request"), wholes(message, "blocks")
                self._tell_rates()
            case "read":
                self._read(side, whole(message, "transfer"))
            case "stop":
                self._stop(side, whole(message, "transfer"))
            case "done":
                self._engine.offers.pulled(text(message, "request"))
            case "renew":
                self._engine.offers.renew(text(message, "request"))
            case "join" | "proof" | "beat" if self._gang:
                self._gang.message(side, message)
            case other:
                raise BadMessage(f"unknown message {other:.20}")

    def _read(self, side: Side, number: int) -> None:
        active = self._active.get((side, number))
        if active is None:
            raise BadMessage("a transfer that was not started")
        fault = self._engine.faults.strike("transfer", self._engine.now()) or {}
        if fault.get("mode") == "fail":
            side.close()
        else:
            self._engine.clock.call_later(
                fault.get("delay_s", 0.0), self._give, side, number, fault.get("mode") == "corrupt"
            )

    def _give(self, side: Side, number: int, corrupt: bool) -> None:
        active = self._active.get((side, number))
        if active:
            name, blocks = active
            contents = content.garbage(f"corrupted:{name}", blocks) if corrupt else self._engine.offers.read(name, blocks)
            side.send("kv", transfer=number, contents=contents)
            self._stop(side, number)

    def _stop(self, side: Side, number: int) -> None:
        if self._active.pop((side, number), None):
            self._tell_rates()

    def _closed(self, side: Side) -> None:
        if self._gang:
            self._gang.closed(side)
        self._active = {key: value for key, value in self._active.items() if key[0] is not side}
        self._tell_rates()

    def _tell_rates(self) -> None:
        for side, number in self._active:
            side.send("rate", transfer=number, rate=self._bytes_per_s / len(self._active))

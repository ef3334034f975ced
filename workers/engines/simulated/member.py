"""The process of a rank beyond 0 of a simulated engine: it joins rank 0, tells what its GPUs do, and ends with it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import orjson

from workers.engines.simulated.gang import Member
from workers.engines.simulated.http import Connection, Exchange
from workers.engines.simulated.measures import gauge_text
from workers.engines.simulated.settings import VERSION, Settings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def leader_of(settings: Settings) -> tuple[str, int]:
    """Host and port of rank 0's side port. Raises ValueError."""
    parts = urlsplit(f"//{settings.leader}")
    if not parts.hostname or not parts.port:
        raise ValueError(f"{settings.leader!r:.80} is no host:port of rank 0")
    return parts.hostname, parts.port


class Surface:
    """What a rank beyond 0 answers: health, version and metrics, and nothing else."""

    def __init__(self, settings: Settings, member: Member) -> None:
        self._settings, self._member = settings, member

    def connection(self) -> Connection:
        return Connection(self._handle)

    def _handle(self, exchange: Exchange) -> None:
        match exchange.method, exchange.path:
            case "GET", "/health":
                exchange.answer(200 if self._member.together else 503, b"")
            case "GET", "/version":
                exchange.answer(200, orjson.dumps({"version": VERSION}))
            case "GET", "/metrics":
                exchange.answer(200, self._page().encode(), METRICS_TYPE)
            case _:
                exchange.answer(404, b'{"detail":"rank 0 answers for this engine"}')

    def _page(self) -> str:
        """No requests of its own: rank 0 counts them. Its GPUs are as busy as rank 0 says that a stage is."""
        settings, busy = self._settings, self._member.busy
        own = {"engine": "0", "model_name": settings.model}
        gpus = {
            "tensor": busy.tensor,
            "tensor_peak": busy.tensor_peak,
            "dram": busy.dram,
            "memory": settings.perf.gpu.memory_bytes * settings.gpu_memory_utilization,
            "power": settings.perf.power_w(busy.tensor, busy.dram),
        }
        requests = (gauge_text(key, 0, own) for key in ("running", "waiting"))
        return "".join(
            (*requests, *(gauge_text(key, dict.fromkeys(settings.gpus, value), own) for key, value in gpus.items()))
        )


async def serve_member(settings: Settings, key: bytes, stop: asyncio.Event, patience_s: float) -> str:
    """Runs until rank 0 has ended, or until `stop` and then as long as rank 0 may need to end. Returns why the engine is
    dead, empty if all is in order. Raises OSError if it cannot listen, ValueError for a place of rank 0 that is none."""
    loop = asyncio.get_running_loop()
    member = Member(settings.rank, key, leader_of(settings), loop)
    web = await loop.create_server(Surface(settings, member).connection, settings.host, settings.port)
    life, asked = loop.create_task(member.run()), loop.create_task(stop.wait())
    await asyncio.wait({life, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not life.done() and member.joined:
        # What runs on rank 0 needs this stage until it is through.
        await asyncio.wait({life}, timeout=patience_s)
    asked.cancel()
    ended_by_order = stop.is_set()
    why = life.result() if life.done() else ""
    life.cancel()
    web.close()
    return "" if ended_by_order else why

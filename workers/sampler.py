"""Sends telemetry once a second: what the GPUs, the engines and the node do. What cannot be sent is dropped and counted."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import psutil

from controlplane.common.stream_end import StreamEnd
from controlplane.common.valkey import UNREACHABLE, connect, describe
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRow, GpuRow, NodeRow, Record, RecordKind
from workers.agent import Agent
from workers.config import AgentConfig
from workers.counts import Sampled
from workers.engine import Engine
from workers.probes.base import Holder, Probe

log = logging.getLogger(__name__)

EVERY_S = 1.0
SEND_TIMEOUT_S = 0.8


@dataclass
class RecordMaker:
    """Numbers an agent's records; a hole in the numbers is a record that was dropped."""

    node: str
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    seq: int = 0

    def pack(self, kind: RecordKind, at: float, rows: Sequence[Any]) -> bytes:
        self.seq += 1
        record = Record(VERSION, f"agent:{self.node}", self.boot, self.seq, at, kind, tuple(rows))
        packed: bytes = msgpack.packb(encode(record))
        return packed


class Sampler:
    def __init__(self, config: AgentConfig, agent: Agent, probe: Probe) -> None:
        self.sampled = Sampled()
        self._config, self._agent, self._probe = config, agent, probe
        self._client = connect(config.telemetry_url, SEND_TIMEOUT_S)
        self._maker = RecordMaker(config.node)
        self._end = StreamEnd()
        self._reachable = True

    async def run(self) -> None:
        """Samples until cancelled. A second that took too long is left out, never caught up."""
        psutil.cpu_percent(None)  # the first call only sets the start of the interval
        due = time.monotonic()
        try:
            while True:
                due = max(due + EVERY_S, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
                with self.sampled.seconds.time():
                    records = await self._collect(time.time())
                await self._send(records)
        finally:
            await self._client.aclose()

    async def _collect(self, now: float) -> list[bytes]:
        engines = [engine for engine in self._agent.engines.values() if engine.record.live]
        gpus = await self._gpu_rows(gpu_holders(engines, now))
        self.sampled.note(gpus, now)
        rows = [row for engine in engines if (row := engine_row(engine, now))]
        records = [self._maker.pack("gpu", now, gpus)]
        if rows:
            records.append(self._maker.pack("engine", now, rows))
        records.append(self._maker.pack("node", now, [self._node_row()]))
        return records

    async def _gpu_rows(self, holders: dict[str, Holder]) -> list[GpuRow]:
        if self._probe.slow:
            return await asyncio.to_thread(self._probe.sample, holders)
        return self._probe.sample(holders)

    def _node_row(self) -> NodeRow:
        memory = psutil.virtual_memory()
        return NodeRow(
            node=self._config.node,
            cpu=psutil.cpu_percent(None) / 100.0,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            disk_free_bytes=psutil.disk_usage(str(self._config.state)).free,
            dropped=self.sampled.records["dropped"],
        )

    async def _send(self, records: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for record in records:
            pipeline.xadd(names.TELEMETRY_STREAM, {"r": record}, **self._end.options())
        pipeline.xlen(names.TELEMETRY_STREAM)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                self._end.note(await pipeline.execute())
            self.sampled.records["sent"] += len(records)
            self._reachable = True
        except UNREACHABLE as error:
            self.sampled.records["dropped"] += len(records)
            if self._reachable:
                log.warning("telemetry cannot be sent and is dropped: %s", describe(error))
            self._reachable = False


def gpu_holders(engines: Sequence[Engine], now: float) -> dict[str, Holder]:
    """Which engine has each GPU, with the engine's own report where it is fresh."""
    holders = {}
    for engine in engines:
        page = engine.vitals.fresh(now)
        for uuid in engine.record.gpus:
            holders[uuid] = Holder(engine.record.id, page.gpus.get(uuid) if page else None)
    return holders


def engine_row(engine: Engine, now: float) -> EngineRow | None:
    """The engine's figures, or None while there are no fresh ones: a page shows an engine without rows as stale."""
    record, page = engine.record, engine.vitals.fresh(now)
    if page is None or record.spec is None or record.rank:  # rank 0 tells of the whole engine
        return None
    return EngineRow(
        engine=record.id,
        model=record.spec.model,
        incarnation=record.incarnation,
        state=record.state,
        running=page.running,
        waiting=page.waiting,
        kv_usage=page.kv_usage,
        counters=page.counters,
        histograms=page.histograms,
    )

"""The node agent: obeys signed commands, owns this node's engines, adopts them after its own death, tells its fact.

Everything here runs in one event loop (workers.node gives it a thread); Celery's tasks only hand envelopes in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from controlplane.common.files import rotate
from controlplane.common.processes import identity
from controlplane.core.codec import encode
from controlplane.core.protocol import AgentFact, Command, EngineFact, GpuFact
from controlplane.core.signing import mark_of, mask, opened
from workers.commands import CommandRefused, Done, Renumber, judge_drain, judge_start, judge_stop, open_command, refuse_gpus
from workers.config import AgentConfig
from workers.engine import Engine, Host
from workers.engines.base import Driver
from workers.facts import FactPublisher
from workers.processes import EngineProcess, Marked, Marker, kill_marked, marked
from workers.records import EngineRecord, RecordStore

log = logging.getLogger(__name__)

SHOW_STOPPED_S = 600.0
"""How long a stopped engine stays in the fact."""
KEEP_STOPPED_S = 86_400.0
"""How long its record stays on disk, to keep late commands out."""
HOUSEKEEPING_S = 2.0
STRANGER_GRACE_S = 10.0


class Agent:
    def __init__(
        self,
        config: AgentConfig,
        drivers: Mapping[str, Driver],
        gpus: tuple[GpuFact, ...],
        lost: Callable[[BaseException], None],
    ) -> None:
        self.config, self.gpus = config, gpus
        self.engines: dict[tuple[str, int], Engine] = {}
        self._boot, self._booted_at = secrets.token_hex(8), time.time()
        self._publisher = FactPublisher(config.broker_url, config.node, config.node_key, self.fact)
        self._host = Host(
            config=config,
            store=RecordStore(config.state / "records"),
            drivers=drivers,
            gpu_index={gpu.uuid: gpu.index for gpu in gpus},
            changed=self._publisher.changed,
            lost=lost,
        )
        self.counts = self._host.counts
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    # --- Life of the agent

    async def open(self) -> None:
        """Adopts what still runs, begins to tell the fact. Raises OSError."""
        await self._recover()
        self._begin(self._publisher.run())
        self._begin(self._keep_house())

    async def close(self) -> None:
        """Ends the agent's own work; engines run on."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
            await asyncio.wait({task})
        for engine in list(self.engines.values()):
            await engine.close()
        await self._publisher.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._after)
        self._tasks.append(task)

    def _after(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error:
            self._host.lost(error)

    async def _recover(self) -> None:
        """Brings records and processes together. A process without a record, or of an incarnation that is over, is ended:
        nobody could drain or stop it any more."""
        records = {record.key: record for record in self._host.store.load()}
        found = list(await asyncio.to_thread(marked, self.config.state))
        for key, record in records.items():
            engine = self.engines[key] = Engine(record, self._host)
            process = survivor(record, found, self.config.node) if record.live else None
            if process:
                engine.adopt(process)
            elif record.live:
                await engine.bury()
        kept = {engine.marker for engine in self.engines.values() if engine.record.live}
        for marker in {each.marker for each in found} - kept:
            leaders = [each for each in found if each.marker == marker and each.leader]
            self._begin(self._end_stranger(marker, [EngineProcess(each.pid, each.identity) for each in leaders]))

    async def _end_stranger(self, marker: Marker, leaders: list[EngineProcess]) -> None:
        log.warning("processes of %s run, which is over or has lost its record: they are ended", marker)
        for leader in leaders:
            leader.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STRANGER_GRACE_S):
                for leader in leaders:
                    await leader.wait()
        await asyncio.to_thread(kill_marked, self.config.state, marker)

    async def _keep_house(self) -> None:
        """Rotates logs and forgets what stopped long ago."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for engine in list(self.engines.values()):
                record = engine.record
                try:
                    if record.live:
                        await asyncio.to_thread(rotate, engine.log_file, self.config.log_limit_bytes)
                    elif record.state == "stopped" and time.time() - (record.ended_at or 0) > KEEP_STOPPED_S:
                        del self.engines[record.key]
                        await engine.forget()
                except OSError as error:
                    log.error("files of engine %s cannot be rotated or removed: %s", record.id, error)

    # --- What it tells

    def fact(self, seq: int, now: float) -> AgentFact:
        return AgentFact(
            node=self.config.node,
            boot=self._boot,
            booted_at=self._booted_at,
            seq=seq,
            at=now,
            address=self.config.address,
            gpus=self.gpus,
            engines=tuple(self._engine_facts(now)),
            labels=self.config.labels,
            network_gbps=self.config.network_gbps,
        )

    def _engine_facts(self, now: float) -> list[EngineFact]:
        shown = []
        for engine in self.engines.values():
            record = engine.record
            over = record.state == "stopped" and now - (record.ended_at or 0.0) > SHOW_STOPPED_S
            if record.spec and not over:
                shown.append(engine.fact())
        return shown

    # --- Commands

    async def obey(self, envelope: object, verbs: frozenset[str]) -> dict[str, Any]:
        """Carries out one signed command of one of the `verbs`. Returns plain data: `{"error": why}` for a refusal, which is
        logged too."""
        try:
            command = open_command(envelope, self.config.node_key, self.config.node, verbs)
            answer = await self._carry_out(command, str(envelope))
            self.counts.commands["done"] += 1
            return answer
        except CommandRefused as refusal:
            self.counts.commands["refused"] += 1
            log.warning("a %s command was refused: %s", "/".join(sorted(verbs)), refusal)
            return {"error": str(refusal)}

    async def _carry_out(self, command: Command, envelope: str) -> dict[str, Any]:
        match command.verb:
            case "start":
                return await self._start(command, mark_of(opened(self.config.node_key, envelope)[1]))
            case "stop":
                return await self._stop(command)
            case "drain" | "undrain":
                return await self._drain(command)
            case "list_engines":
                return {"engines": encode(self._engine_facts(time.time()))}
            case "tail_log":
                return await self._tail(command)
            case "rekey":
                return self._rekey(command, opened(self.config.node_key, envelope)[1])
            case "link_listen" | "link_send":
                raise CommandRefused("links are measured beside the agent's own work, by their own task")

    async def _start(self, command: Command, key_mark: str) -> dict[str, Any]:
        if self._closing:
            raise CommandRefused("this agent is stopping its engines")
        assert command.spec is not None
        engine = self._engine(command.spec.id, command.rank)
        async with engine.turn:
            verdict = judge_start(engine.record, command.spec)
            if isinstance(verdict, Done):
                return self._done(engine, verdict)
            if isinstance(verdict, Renumber):
                await engine.renumber(command.spec_generation)
            else:
                taken, held = self._taken_by_others(engine)
                refusal = refuse_gpus(command.spec.ranks[command.rank].gpus, self._host.gpu_index, held)
                await engine.launch(command.spec, command.rank, taken, refusal, key_mark)
        return {"state": engine.record.state}

    async def _stop(self, command: Command) -> dict[str, Any]:
        engine = self._engine(command.engine, command.rank)
        async with engine.turn:
            verdict = judge_stop(engine.record, command.spec_generation)
            if isinstance(verdict, Done):
                return self._done(engine, verdict)
            await engine.stop(command.spec_generation, command.grace_s)
        return {"state": engine.record.state}

    async def _drain(self, command: Command) -> dict[str, Any]:
        engine = self._known(command)
        async with engine.turn:
            verdict = judge_drain(engine.record, command)
            if isinstance(verdict, Done):
                return self._done(engine, verdict)
            await engine.drain("draining" if command.verb == "drain" else "ready", command.issued_at)
        return {"state": engine.record.state}

    async def _tail(self, command: Command) -> dict[str, Any]:
        engine = self._known(command)
        try:
            lines = await asyncio.to_thread(engine.tail, command.lines)
        except OSError as error:
            raise CommandRefused(f"the log of {engine.record.id} cannot be read: {error.strerror}") from error
        return {"engine": engine.record.id, "incarnation": engine.record.incarnation, "lines": lines}

    def _rekey(self, command: Command, key: bytes) -> dict[str, Any]:
        """Believe a newer key, and sign facts with it from now on."""
        try:
            self.config.node_key.take(mask(key, f"rekey:{command.peer}", bytes.fromhex(command.token)), alone=command.alone)
        except ValueError as error:
            raise CommandRefused("malformed command: a key has 32 bytes, as hex") from error
        except OSError as error:
            raise CommandRefused(f"the key cannot be kept: {error.strerror}") from error
        self._publisher.changed()
        return {}

    def _done(self, engine: Engine, verdict: Done) -> dict[str, Any]:
        log.info("engine %s: nothing to do: %s", engine.record.id, verdict.why)
        return {"state": engine.record.state}

    def _engine(self, id: str, rank: int) -> Engine:
        return self.engines.setdefault((id, rank), Engine(EngineRecord(id, rank, 0), self._host))

    def _known(self, command: Command) -> Engine:
        engine = self.engines.get((command.engine, command.rank))
        if engine is None or engine.record.spec is None:
            raise CommandRefused(f"there is no engine {command.engine} of rank {command.rank} here")
        return engine

    def _taken_by_others(self, engine: Engine) -> tuple[set[int], dict[str, str]]:
        """Ports and GPUs of all other live engines of this node."""
        others = [other.record for other in self.engines.values() if other is not engine and other.record.live]
        ports = {port for record in others for port in (record.port, record.side_port)}
        return ports, {uuid: record.id for record in others for uuid in record.gpus}

    async def stop_all(self, grace_s: float) -> None:
        """Stops every engine, all at once, and returns when none is left. No start is obeyed any more."""
        self._closing = True
        live = [engine for engine in self.engines.values() if engine.record.live]
        for engine in live:
            async with engine.turn:
                await engine.stop(engine.record.spec_generation, grace_s)
        await asyncio.gather(*(engine.gone() for engine in live))


def survivor(record: EngineRecord, found: list[Marked], node: str) -> EngineProcess | None:
    """The living process of a record: the noted one, or, if the agent died before it could note it, the session leader
    that carries its marker."""
    if record.pid and record.process and identity(record.pid) == record.process:
        return EngineProcess(record.pid, record.process)
    wanted = (node, record.id, record.rank, record.incarnation)
    for each in found:
        marker = each.marker
        if each.leader and (marker.node, marker.engine, marker.rank, marker.incarnation) == wanted:
            return EngineProcess(each.pid, each.identity)
    return None

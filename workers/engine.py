"""One rank of an engine on this node: launched, watched, verified, scraped, drained, stopped. Lives in the agent's loop.

Every change is on disk before it is told, so an agent that dies at any line finds the engine again: first the record of a
new incarnation, then the process (whose environment carries the marker), then its pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from controlplane.common.engineclient import EngineClient, EngineSilent
from controlplane.core.lifecycle import ENGINE, SERVING, move
from controlplane.core.protocol import EngineFact, EngineSpec
from workers import checks, logs, ports
from workers.config import AgentConfig
from workers.counts import Counts
from workers.engines.base import Driver, SpecRefused
from workers.launching import clean_up, folder_of, key_of, prepare, read_secret
from workers.processes import EngineProcess, Exit, Marker, child_environment, kill_marked
from workers.records import EngineRecord, RecordStore
from workers.vitals import HUNG_AFTER_S, Vitals, after_miss, after_scrape

log = logging.getLogger(__name__)
T = TypeVar("T")

SCRAPE_EVERY_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
TAIL_BYTES = 2000


class GaveUp(Exception):
    """An engine will not become ready."""


@dataclass(frozen=True)
class Host:
    """What the engines of an agent share."""

    config: AgentConfig
    store: RecordStore
    drivers: Mapping[str, Driver]
    gpu_index: Mapping[str, int]
    changed: Callable[[], None]
    """Called after every change of a fact."""
    lost: Callable[[BaseException], None]
    """Called when a task of an engine failed in a way nobody foresaw."""
    counts: Counts = field(default_factory=Counts)


class Engine:
    def __init__(self, record: EngineRecord, host: Host) -> None:
        self.record = record
        self.turn = asyncio.Lock()
        """Held by whoever carries out a command on this engine."""
        self.vitals = Vitals(time.time())
        self._host = host
        self._saving = asyncio.Lock()
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._life: asyncio.Task[None] | None = None
        self._phases: asyncio.Task[str] | None = None
        self._killer: asyncio.Task[None] | None = None

    @property
    def marker(self) -> Marker:
        return Marker(self._host.config.node, self.record.id, self.record.rank, self.record.incarnation)

    @property
    def log_file(self) -> Path:
        return self._host.config.logs / self.record.log_name

    def fact(self) -> EngineFact:
        """The engine's part of the agent's fact. Only for an engine that was once started."""
        record, vitals = self.record, self.vitals
        assert record.spec is not None
        host = f"[{self._host.config.address}]" if ":" in self._host.config.address else self._host.config.address
        serving = record.state in SERVING | {"stopping"}
        return EngineFact(
            id=record.id,
            model=record.spec.model,
            rank=record.rank,
            incarnation=record.incarnation,
            spec_generation=record.spec_generation,
            state=record.state,
            kind=record.spec.kind,
            reason=record.reason or self._ailing(),
            pid=record.pid,
            url=f"http://{host}:{record.port}" if record.port else "",
            side_port=record.side_port,
            started_at=record.started_at,
            ready_at=record.ready_at,
            exit_code=record.exit_code,
            running=vitals.page.running if vitals.page and serving else 0,
            waiting=vitals.page.waiting if vitals.page and serving else 0,
            quiet_since=vitals.quiet_since if serving else None,
            scraped_at=vitals.scraped_at if serving else None,
            compat=record.compat,
            version=record.version,
            gpus=record.gpus,
            log_tail=record.log_tail,
        )

    def _ailing(self) -> str:
        if self.record.state in ("ready", "draining") and self.vitals.hung(time.time()):
            return f"hung: it answered no scrape for over {HUNG_AFTER_S:g} s ({self.vitals.problem})"
        return ""

    # --- Start

    async def launch(self, spec: EngineSpec, rank: int, taken_ports: set[int], refusal: str, key_mark: str) -> None:
        """Starts a new incarnation. What cannot be started becomes `failed` with its reason; so does a `refusal` that the
        agent found already. `key_mark`: of the node's key that the start was signed with. Never raises for that."""
        before, config = self.record, self._host.config
        self.record = EngineRecord(
            id=spec.id,
            rank=rank,
            spec_generation=spec.spec_generation,
            spec=spec,
            incarnation=max(before.incarnation, spec.incarnation_floor) + 1,
            state=move(ENGINE, before.state, "starting"),
            started_at=time.time(),
            port=before.port,
            side_port=before.side_port,
            key_mark=key_mark,
        )
        self.vitals = Vitals(time.time())
        try:
            if refusal:
                raise SpecRefused(refusal)
            port = ports.choose(config.address, spec.port, before.port, taken_ports)
            side = ports.choose(config.address, spec.side_port, before.side_port, taken_ports | {port})
            self.record = replace(self.record, port=port, side_port=side)
            await self._save()
            launch = await asyncio.to_thread(prepare, config, self._host.drivers, self._host.gpu_index, self.record, spec)
            env = child_environment(os.environ, launch.env, self.marker, config.state)
            folder = folder_of(config, self.record)
            process = await asyncio.to_thread(EngineProcess.spawn, launch.argv, env, folder, self.log_file)
        except (SpecRefused, OSError) as error:
            log.warning("engine %s (generation %d) cannot start: %s", spec.id, spec.spec_generation, error)
            await self._note("failed", reason=f"cannot start: {error}"[:1000], ended_at=time.time())
            self._host.counts.events["failed"] += 1
            return
        await self._note("starting", pid=process.pid, process=process.identity, start_timeout_s=launch.start_timeout_s)
        self._host.counts.events["started"] += 1
        log.info("engine %s incarnation %d started: pid %d, port %d", spec.id, self.record.incarnation, process.pid, port)
        self._follow(process)

    def adopt(self, process: EngineProcess) -> None:
        """Goes on with a process that outlived an agent, in the state it was in."""
        log.info("engine %s incarnation %d adopted: pid %d", self.record.id, self.record.incarnation, process.pid)
        self.record = replace(self.record, pid=process.pid, process=process.identity)
        self.vitals = Vitals(time.time())
        self._follow(process)
        if self.record.state == "stopping":
            # Whether the last agent sent its SIGTERM is not known. A second one changes nothing.
            process.terminate()
            self._kill_at(self.record.stop_deadline or 0.0)

    async def bury(self) -> None:
        """Notes that the process of a live record ended while no agent ran."""
        await self._ended(Exit(None), "it ended, or never started, while the agent was away")

    # --- Life

    def _follow(self, process: EngineProcess) -> None:
        config = self._host.config
        self._process = process
        self._client = EngineClient(config.address, self.record.port, key_of(self._host.config, self.record))
        self._phases = asyncio.create_task(self._serve(self._client)) if self.record.state != "stopping" else None
        self._life = asyncio.create_task(self._live(process, self._phases))
        self._life.add_done_callback(self._after)

    def _after(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error:
            self._host.lost(error)

    async def _live(self, process: EngineProcess, phases: asyncio.Task[str] | None) -> None:
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ended, phases} if phases else {ended}, return_when=asyncio.FIRST_COMPLETED)
            gave_up = ""
            if not ended.done() and phases and not phases.cancelled():
                gave_up = phases.result()
                log.warning("engine %s is killed: %s", self.record.id, gave_up)
                process.kill()
            how = await ended
        finally:
            ended.cancel()
            if phases:
                phases.cancel()
        if self._killer:
            self._killer.cancel()
        # An engine that was killed leaves its own children behind, and they hold its GPUs.
        await asyncio.to_thread(kill_marked, self._host.config.state, self.marker)
        await self._ended(how, gave_up)

    async def _serve(self, client: EngineClient) -> str:
        """Brings a started engine to ready and then watches it for ever; returns why it was given up before."""
        spec = self.record.spec
        assert spec is not None
        try:
            if self.record.state == "starting":
                await self._patiently("healthy", lambda: checks.healthy(client))
                await self._note("verifying")
            if self.record.state == "verifying":
                told = await self._patiently("verified", lambda: self._verify(client, spec))
                self.vitals = Vitals(time.time())
                await self._note("ready", ready_at=time.time(), version=told.version, compat=told.compat)
                self._host.counts.events["ready"] += 1
                log.info("engine %s incarnation %d is ready", self.record.id, self.record.incarnation)
        except GaveUp as error:
            return str(error)
        while True:
            began = time.monotonic()
            await self._scrape(client)
            await asyncio.sleep(max(0.1, SCRAPE_EVERY_S - (time.monotonic() - began)))

    async def _verify(self, client: EngineClient, spec: EngineSpec) -> checks.Verified:
        return await (checks.verify_member(client) if self.record.rank else checks.verify(client, spec))

    async def _patiently(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        pause, deadline = FIRST_PAUSE_S, self.record.started_at + self.record.start_timeout_s
        while True:
            try:
                return await attempt()
            except checks.NeverRight as error:
                raise GaveUp(str(error)) from error
            except (EngineSilent, ValueError) as error:
                if time.time() > deadline:
                    raise GaveUp(f"not {what} within {self.record.start_timeout_s:g} s: {error}") from error
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 1.3)

    async def _scrape(self, client: EngineClient) -> None:
        before = self.vitals
        counts = self._host.counts
        try:
            with counts.scrape_seconds.time():
                page = await checks.scrape(client)
            self.vitals = after_scrape(before, page, time.time())
            counts.scrapes["done"] += 1
        except (EngineSilent, ValueError) as error:
            self.vitals = after_miss(before, str(error))
            counts.scrapes["failed"] += 1
        self._host.changed()

    async def _ended(self, how: Exit, why: str) -> None:
        if self._client:
            self._client.close()
        state = "stopped" if self.record.state == "stopping" else "failed"
        self._host.counts.events[state] += 1
        reason = "" if state == "stopped" else f"{why or how} while {self.record.state}"
        tail = "" if state == "stopped" else await asyncio.to_thread(self._tail_text)
        log.log(
            logging.INFO if state == "stopped" else logging.ERROR,
            "engine %s incarnation %d is %s: %s", self.record.id, self.record.incarnation, state, reason or how,
        )  # fmt: skip
        self._process = None
        await self._note(
            state,
            reason=reason,
            exit_code=how.code,
            ended_at=time.time(),
            pid=0,
            process="",
            stop_deadline=None,
            log_tail=tail,
        )

    def tail(self, lines: int, max_bytes: int = logs.MAX_TAIL_BYTES) -> list[str]:
        """The last lines of this incarnation's log, its secrets and what looks like one hidden. Blocks; raises OSError."""
        hidden = [key_of(self._host.config, self.record)]
        for name in self.record.spec.env.values() if self.record.spec else ():
            with contextlib.suppress(SpecRefused):
                hidden.append(read_secret(self._host.config.state, name))
        text = logs.hide("\n".join(logs.tail(self.log_file, lines, max_bytes)), hidden)
        return text.split("\n") if text else []

    def _tail_text(self) -> str:
        try:
            text = "\n".join(self.tail(40, TAIL_BYTES))
        except OSError as error:
            return f"(the log cannot be read: {error.strerror})"
        return text.encode()[-TAIL_BYTES:].decode(errors="ignore")

    # --- Commands

    async def drain(self, state: str, ordered_at: float) -> None:
        """`state`: draining or ready."""
        await self._note(state, drain_ordered_at=ordered_at)

    async def renumber(self, generation: int) -> None:
        await self._note(self.record.state, spec_generation=generation)

    async def stop(self, generation: int, grace_s: float) -> None:
        """Asks the process to end, and kills all of it after `grace_s`. Returns at once; `gone` waits. A second stop can
        only shorten the time."""
        generation = max(generation, self.record.spec_generation)
        process = self._process
        if process is None:
            await self._note("stopped", spec_generation=generation, ended_at=time.time(), reason="", log_tail="")
            return
        again, deadline = self.record.state == "stopping", time.time() + grace_s
        if self._phases and self.record.state not in SERVING:
            self._phases.cancel()  # it would go on to verify; one that serves is scraped to its end
        if again:
            deadline = min(deadline, self.record.stop_deadline or deadline)
        await self._note("stopping", spec_generation=generation, stop_deadline=deadline, reason="")
        if not again:
            process.terminate()
        self._kill_at(deadline)

    async def gone(self) -> None:
        """Returns when no process of this engine is left."""
        if self._life:
            await asyncio.wait({self._life})

    def _kill_at(self, deadline: float) -> None:
        if self._killer:
            self._killer.cancel()
        self._killer = asyncio.create_task(self._kill(deadline))
        self._killer.add_done_callback(self._after)

    async def _kill(self, deadline: float) -> None:
        await asyncio.sleep(max(0.0, deadline - time.time()))
        if self._process:
            log.warning("engine %s did not stop in time and is killed", self.record.id)
            self._process.kill()

    async def close(self) -> None:
        """Lets go of a running engine: the agent ends, the engine goes on."""
        for task in (self._killer, self._phases, self._life):
            if task:
                task.cancel()
                await asyncio.wait({task})
        if self._client:
            self._client.close()

    async def forget(self) -> None:
        """Removes all traces of an engine that stopped long ago. Raises OSError."""
        await asyncio.to_thread(clean_up, self._host.config, self.record, 0)
        await asyncio.to_thread(self._host.store.forget, self.record)

    # --- Memory

    async def _note(self, state: str, **changes: Any) -> None:
        """Makes a change durable, then visible, so that no fact tells what a killed agent would forget. Goes on to its end
        when the caller is cancelled: an older record never overwrites a newer one."""
        await asyncio.shield(self._make_durable(state, changes))

    async def _make_durable(self, state: str, changes: dict[str, Any]) -> None:
        async with self._saving:
            record = replace(self.record, state=move(ENGINE, self.record.state, state), **changes)
            try:
                await asyncio.to_thread(self._host.store.save, record)
            except OSError as error:
                # The process runs on and can be found by its marker; the next change is written again.
                log.error("the record of engine %s cannot be written: %s", record.id, error)
            self.record = record
        self._host.changed()

    async def _save(self) -> None:
        async with self._saving:
            await asyncio.to_thread(self._host.store.save, self.record)

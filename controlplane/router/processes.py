"""A router that is several processes: their parent, which starts them, starts those again that die, and ends them in order.

Each process listens on the port by itself (SO_REUSEPORT), so the kernel deals connections out, and a process that dies loses
its own connections only. Each is a router of its own in facts and telemetry, named ID.1, ID.2, …: an engine is drained when
every process has acknowledged. The parent touches no request. If it dies, the processes stop in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence

from controlplane.router.server import Options, listen, router_id
from controlplane.router.shared import At, Segment

log = logging.getLogger(__name__)

WAIT_FIRST_S = 0.1
WAIT_MAX_S = 10.0
"""Before a process that died is started again; doubled each time unless it has run for longer than this."""
KILL_AFTER_S = 5.0
"""A process that has not ended so long after its own deadline is killed."""


def supervise(options: Options, argv: Sequence[str], processes: int) -> int:
    """Runs `processes` routers with the options `argv` until SIGTERM or SIGINT. Raises OSError if the address cannot be
    used."""
    # Bound and not listening: gets no connection, and keeps the port while processes come and go.
    with listen(options.host, options.port, shared=True) as holder:
        port = holder.getsockname()[1]
        return asyncio.run(_Parent(options, argv, processes, port).run())


class _Parent:
    def __init__(self, options: Options, argv: Sequence[str], processes: int, port: int) -> None:
        self._options = options
        self._id = router_id(options, port)
        self._port = port
        self._argv = (*argv, "--port", str(port), "--id", self._id)
        self._segment = Segment.create(processes)
        self._lifeline, self._held = os.pipe()
        self._running: set[Process] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        slots = self._segment.slots
        keepers = [loop.create_task(self._keep(number)) for number in range(len(slots))]
        ready = loop.create_task(self._tell_when_ready())
        await asyncio.gather(*keepers)
        ready.cancel()
        os.close(self._held)
        os.close(self._lifeline)
        log.info("router %s has stopped", self._id)
        return 0

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running:
            _terminate(process)

    async def _tell_when_ready(self) -> None:
        slots = self._segment.slots
        while not all(slot.head[At.LIVE] for slot in slots):  # noqa: ASYNC110  # other processes' memory
            await asyncio.sleep(0.02)
        log.info("router %s listens on %s:%d with %d processes", self._id, self._options.host, self._port, len(slots))

    async def _keep(self, number: int) -> None:
        """One process after another, until the router is stopped."""
        wait_s = WAIT_FIRST_S
        while not self._stopping.is_set():
            started = time.monotonic()
            how = await self._run_one(number)
            if self._stopping.is_set():
                return
            wait_s = WAIT_FIRST_S if time.monotonic() - started > WAIT_MAX_S else min(wait_s * 2, WAIT_MAX_S)
            log.warning("process %s.%d %s; starting it again in %.1f s", self._id, number + 1, how, wait_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def _run_one(self, number: int) -> str:
        """How it ended."""
        segment = self._segment
        worker = f"{number},{len(segment.slots)},{segment.descriptor},{self._lifeline}"
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "controlplane.router", *self._argv, "--worker", worker,
                pass_fds=(segment.descriptor, self._lifeline),
            )  # fmt: skip
        except OSError as error:  # no memory, or no descriptors: there may be some later
            return f"was not started: {error.strerror}"
        self._running.add(process)
        try:
            code = await self._end_of(process)
            return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        finally:
            self._running.discard(process)
            segment.slots[number].process_died()

    async def _end_of(self, process: Process) -> int:
        """Its exit status. Once the router is being stopped, one that outlives its deadline is killed."""
        if self._stopping.is_set():
            _terminate(process)  # the others were told while this one was being started
        ended = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        try:
            async with asyncio.timeout(self._options.limits.stop_s + KILL_AFTER_S if self._stopping.is_set() else None):
                return await asyncio.shield(ended)
        except TimeoutError:
            process.kill()
            return await ended


def _terminate(process: Process) -> None:
    try:
        process.terminate()
    except ProcessLookupError:
        pass  # it ended by itself

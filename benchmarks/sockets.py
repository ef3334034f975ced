"""Live sockets on one web process: how late frames come, what the process costs, and what clients that do not read do to it.

    manage.py bench sockets [--sockets N] [--deaf N] [--seconds S] [--gpus N]

Real PostgreSQL and Valkey, the web process as `up` starts it, and a publisher that writes the topic "fleet" of a fleet of
`--gpus` once a second as ingest does (every row changes). `--sockets` clients follow it and stamp each frame: late is from
the moment before it was written to the moment after it was read by the client, in the same machine's clock. Then `--deaf`
clients more that follow and never read. Prints p50 and p99 of both phases, processor time and memory of the web process, and
how long until the deaf are cut off (TCP reset). Exit 1 if a p99 is beyond 300 ms, the processor time beyond 60% of
a core, a deaf client beyond 2 MB (process and kernel), or one of them is still there at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import errno
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from _servers import servers

ROOT = Path(__file__).parent.parent
P99_LIMIT_MS, CPU_LIMIT, DEAF_LIMIT_MB = 300.0, 0.6, 2.0
READ_BYTES = 1 << 20
SUBSCRIBE = b'{"subscribe":["fleet"]}'
DEAF_WITHIN_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py bench sockets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=500, metavar="N")
    parser.add_argument("--deaf", type=int, default=50, metavar="N", help="clients that never read (default 50)")
    parser.add_argument("--seconds", type=int, default=60, metavar="S", help="of each phase (default 60)")
    parser.add_argument("--gpus", type=int, default=64, metavar="N", help="of the fleet that is shown (default 64)")
    options = parser.parse_args()
    with servers():
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.test import Client

    from controlplane.core import names
    from controlplane.stack.ports import free_port

    call_command("migrate", database="owner", verbosity=0)
    client = Client()
    client.force_login(get_user_model().objects.create_user("viewer"), "django.contrib.auth.backends.ModelBackend")
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    web = subprocess.Popen(
        [sys.executable, "-m", "controlplane.live.server", "--port", str(port)],
        cwd=ROOT, env=os.environ | {names.ENV_CONSOLE_ORIGINS: origin}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    publisher = threading.Thread(target=_publish, args=(options.gpus, over := threading.Event()))
    publisher.start()
    try:
        return Run(options, web.pid, port, origin, client.cookies["sessionid"].value).run()
    finally:
        over.set()
        publisher.join()
        web.kill()
        web.wait()


# --- what ingest does ----------------------------------------------------------------------------------------------------


def _publish(gpus: int, over: threading.Event) -> None:
    from controlplane.telemetry.publish import Publisher
    from controlplane.telemetry.stream import connect_async

    async def publish() -> None:
        async with connect_async() as valkey:
            publisher = Publisher(valkey)
            due = time.monotonic()
            while not over.is_set():
                await publisher.publish({"fleet": _rows(gpus, time.time())}, time.time())
                due += 1.0
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    asyncio.run(publish())


def _rows(gpus: int, now: float) -> list[Any]:
    """Rows as large as those of a real fleet: an engine per four GPUs, a node per eight. `at` is the stamp."""
    from controlplane.telemetry.rows import EngineLiveRow, NodeLiveRow

    draw = random.Random(int(now))
    engines = [
        EngineLiveRow(
            id=f"engine:e-{i:04}", type="engine", engine=f"e-{i:04}", label=f"P{i}", model="llama-70b", role="prefill",
            state="ready", state_since=now - 900, reason="", node=f"n{i // 2}", gpu_indices=[0, 1, 2, 3],
            gpu_uuids=[f"GPU-{i * 4 + g:05}-{'0' * 26}" for g in range(4)], incarnation=1,
            tensor=[draw.random() for _ in range(4)], dram=[draw.random() for _ in range(4)], running=draw.randint(0, 60),
            waiting=draw.randint(0, 4), kv_usage=draw.random(), sampled_at=now,
        )
        for i in range(gpus // 4)
    ]  # fmt: skip
    nodes = [
        NodeLiveRow(
            id=f"node:n{i}", type="node", name=f"n{i}", state="ok", gpus=8, spare=[], gpu_kind="h100-sxm", cpu=draw.random(),
            memory_used_bytes=draw.randint(0, 1 << 39), memory_total_bytes=1 << 40, sampled_at=now,
        )
        for i in range(gpus // 8)
    ]  # fmt: skip
    models = [
        {"id": f"model:{i}", "type": "model", "histogram": [draw.randint(0, 99) for _ in range(24)], "filler": "x" * 900}
        for i in range(3)
    ]
    spark = {name: [draw.random() for _ in range(40)] for name in ("a", "b", "c", "d")}
    return [
        {"id": "fleet", "type": "fleet", "spark": spark, "stamp": time.time(), "filler": "x" * 900},
        *models,
        *engines,
        *nodes,
    ]


# --- clients -------------------------------------------------------------------------------------------------------------


class Page(asyncio.Protocol):
    """Reads frames without looking into more than their stamp: the clients of a benchmark must not be what is measured."""

    def __init__(self, head: bytes, late_ms: list[float]) -> None:
        self._head, self._late_ms = head, late_ms
        self._data = bytearray()
        self.open = False
        self.frame_bytes: list[int] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._head)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self.open:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self._data.startswith(b"HTTP/1.1 101"), bytes(self._data[:80])
            del self._data[: end + 4]
            self.open = True
            self._transport.write(_frame(0x81, SUBSCRIBE))
        while (frame := self._take()) is not None:
            code, body = frame
            if code == 0x89:
                self._transport.write(_frame(0x8A, body))
            elif code == 0x81:
                stamp = body.find(b'"stamp":')
                if stamp >= 0:
                    self._late_ms.append((time.time() - float(body[stamp + 8 : body.index(b",", stamp)])) * 1000)
                    self.frame_bytes.append(len(body))

    def _take(self) -> tuple[int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        size, start = data[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if len(data) < start + size:
            return None
        body = bytes(data[start : start + size])
        code = data[0]
        del data[: start + size]
        return code, body


def _frame(code: int, body: bytes) -> bytes:
    return bytes([code, 0x80 | len(body), 0, 0, 0, 0]) + body


class Run:
    def __init__(self, options: argparse.Namespace, pid: int, port: int, origin: str, session: str) -> None:
        self._options, self._port = options, port
        self._web = psutil.Process(pid)
        lines = (
            "GET /ws/live HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(b'0' * 16).decode()}", f"Origin: {origin}",
            f"Cookie: sessionid={session}", "", "",
        )  # fmt: skip
        self._head = "\r\n".join(lines).encode()
        self._late_ms: list[float] = []
        self._deaf: list[socket.socket] = []

    def run(self) -> int:
        return asyncio.run(self._run())

    async def _run(self) -> int:
        await self._wait_for_web()
        loop, pages = asyncio.get_running_loop(), []
        empty_mb = self._memory_mb()
        for _ in range(self._options.sockets):
            _, page = await loop.create_connection(lambda: Page(self._head, self._late_ms), "127.0.0.1", self._port)
            pages.append(page)
            await asyncio.sleep(0.005)
        while not all(page.open for page in pages):  # noqa: ASYNC110  # 500 of them
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
        failed = await self._phase(f"{self._options.sockets} sockets")
        with_pages_mb = self._memory_mb()
        size = pages[0].frame_bytes[-1] if pages[0].frame_bytes else 0
        print(f"frames of {size:,} bytes; {(with_pages_mb - empty_mb) / len(pages):.2f} MB of memory a socket")
        failed |= await self._phase_with_deaf(with_pages_mb)
        still_open = sum(page.open for page in pages)
        print(f"open at the end: {still_open} of {len(pages)}")
        return int(failed or still_open < len(pages))

    async def _wait_for_web(self) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                await asyncio.sleep(0.1)

    async def _phase(self, name: str) -> bool:
        self._late_ms.clear()
        used, began = self._cpu_s(), time.monotonic()
        await asyncio.sleep(self._options.seconds)
        cpu = (self._cpu_s() - used) / (time.monotonic() - began)
        late = sorted(self._late_ms)
        expected = self._options.sockets * self._options.seconds
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        over = p99 > P99_LIMIT_MS or cpu > CPU_LIMIT
        print(
            f"{name}: {len(late):,} frames (of {expected:,}), late p50 {p50:.0f}, p99 {p99:.0f}, most {late[-1]:.0f} ms "
            f"(limit {P99_LIMIT_MS:.0f}); {cpu:.0%} of a core (limit {CPU_LIMIT:.0%}){', OVER' if over else ''}"
        )
        return over

    async def _phase_with_deaf(self, before_mb: float) -> bool:
        began = time.monotonic()
        for _ in range(self._options.deaf):
            self._deaf.append(await asyncio.to_thread(self._connect_deaf))
        watch = asyncio.create_task(self._watch_deaf(began, before_mb))
        failed = await self._phase(f"with {self._options.deaf} that never read")
        return await watch or failed

    def _connect_deaf(self) -> socket.socket:
        deaf = socket.create_connection(("127.0.0.1", self._port))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(self._head)
        deaf.recv(12)
        deaf.sendall(_frame(0x81, SUBSCRIBE))
        return deaf

    async def _watch_deaf(self, began: float, before_mb: float) -> bool:
        """The most that one of them costs, and when the last one was cut off."""
        most_mb = 0.0
        left = list(self._deaf)
        while left and time.monotonic() - began < DEAF_WITHIN_S:
            kernel = _kernel_bytes(self._port)
            mb = (self._memory_mb() - before_mb) / len(self._deaf) + kernel / 1e6
            most_mb = max(most_mb, mb)
            left = [each for each in left if each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != errno.ECONNRESET]
            await asyncio.sleep(0.5)
        took = time.monotonic() - began
        over = bool(left) or most_mb > DEAF_LIMIT_MB
        print(
            f"a client that never reads costs at most {most_mb:.2f} MB (limit {DEAF_LIMIT_MB:g}); "
            + (f"{len(left)} ARE STILL THERE after {took:.0f} s" if left else f"all were cut off within {took:.0f} s")
        )
        return over

    def _cpu_s(self) -> float:
        times = self._web.cpu_times()
        return times.user + times.system

    def _memory_mb(self) -> float:
        return self._web.memory_info().rss / 1e6


def _kernel_bytes(port: int) -> int:
    """The largest send queue of a connection of this port, as the kernel tells it."""
    most = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields: Sequence[str] = line.split()
        if int(fields[1].split(":")[1], 16) == port:
            most = max(most, int(fields[4].split(":")[0], 16))
    return most


if __name__ == "__main__":
    sys.exit(main())

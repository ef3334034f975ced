"""The supervisor with real child processes, small ones."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from controlplane.common.processes import identity
from controlplane.core.names import ENV_ENGINE_HOME, ENV_ENGINE_MARKER
from controlplane.stack import health, record
from controlplane.stack.folder import StateFolder
from controlplane.stack.leftovers import stop_leftovers
from controlplane.stack.ports import free_port
from controlplane.stack.record import Record
from controlplane.stack.services import AGENTS, ROUTERS, SERVERS, SOURCES, Service
from controlplane.stack.supervisor import Child, Supervisor, family

# Serves HTTP, tells when it stops, and can be made deaf to SIGTERM.
_SERVER = """
import http.server, os, signal, sys, time
def stop(number, frame):
    open(sys.argv[2], "a").write(f"{sys.argv[3]} {signal.Signals(number).name}\\n")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN if "deaf" in sys.argv else stop)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *a): print("request", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Bench:
    """A supervisor, what it said, and the file in which children note how they were stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stops = folder, folder / "stops"
        self.said: list[str] = []
        self.supervisor = Supervisor(folder, lambda name, text: self.said.append(f"{name} {text}"), lambda: None)

    def server(self, name: str, stage: int = SOURCES, *more: str, after: tuple[str, ...] = ()) -> Service:
        port = free_port()
        return Service(
            name=name,
            argv=(sys.executable, "-c", _SERVER, str(port), str(self.stops), name, *more),
            env=dict(os.environ),
            check=health.http("127.0.0.1", port, "/"),
            stage=stage,
            after=after,
            port=port,
            stop_signal=signal.SIGUSR1 if stage == AGENTS else signal.SIGTERM,
        )

    def child(self, name: str) -> Child:
        return next(child for child in self.supervisor.children if child.service.name == name)


async def until(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.supervisor.stop()


async def test_a_killed_process_is_started_again_and_serves(bench: Bench) -> None:
    bench.supervisor.add([bench.server("web")])
    web = bench.child("web")
    await until(lambda: web.state == "ready")
    before = web.pid
    os.kill(before, signal.SIGKILL)
    await until(lambda: web.pid != before and web.state == "ready")
    assert web.restarts == 1
    assert "web was killed by SIGKILL: starting it again in 0.25 s" in bench.said


async def test_children_of_a_killed_process_do_not_stay_behind(bench: Bench) -> None:
    program = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    bench.supervisor.add([Service("control", (sys.executable, "-c", program), dict(os.environ), health.alive(0.1), SOURCES)])
    log = bench.folder / "control.log"
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    child = int(log.read_text())
    os.kill(bench.child("control").pid, signal.SIGKILL)
    await until(lambda: not identity(child))


async def test_a_process_waits_for_what_it_needs(bench: Bench) -> None:
    bench.supervisor.add([bench.server("web", after=("database", "valkey")), bench.server("valkey", SERVERS)])
    await until(lambda: bench.child("valkey").state == "ready")
    assert (bench.child("web").pid, bench.child("web").state) == (0, "waiting")
    bench.supervisor.event("database").set()
    await until(lambda: bench.child("web").state == "ready")


async def test_all_are_stopped_in_order_and_agents_are_told_to_stop_their_engines(bench: Bench) -> None:
    stages = {"valkey": SERVERS, "agent-n1": AGENTS, "web": SOURCES, "router": ROUTERS}
    bench.supervisor.add([bench.server(name, stage) for name, stage in stages.items()])
    await until(lambda: all(child.state == "ready" for child in bench.supervisor.children))
    pids = [child.pid for child in bench.supervisor.children]
    assert await bench.supervisor.stop() == []
    told = bench.stops.read_text().splitlines()
    assert told == ["web SIGTERM", "router SIGTERM", "agent-n1 SIGUSR1", "valkey SIGTERM"]
    assert not any(map(psutil.pid_exists, pids))


async def test_a_process_that_does_not_listen_is_killed(bench: Bench) -> None:
    bench.supervisor.add([bench.server("web", SOURCES, "deaf")])
    await until(lambda: bench.child("web").state == "ready")
    pid = bench.child("web").pid
    assert await bench.supervisor.stop() == ["web"]
    assert not psutil.pid_exists(pid)


async def test_an_essential_process_that_never_comes_up_fails_the_start(bench: Bench) -> None:
    service = Service("web", (sys.executable, "-c", "exit(7)"), {}, health.alive(60), SOURCES, essential=True)
    bench.supervisor.add([service])
    await asyncio.wait_for(bench.supervisor.failed.wait(), 60)
    assert bench.supervisor.failure is not None
    assert (bench.supervisor.failure.name, bench.supervisor.failure.code) == ("web", 7)


async def test_a_program_that_does_not_exist_is_told_and_tried_again(bench: Bench) -> None:
    bench.supervisor.add([Service("ghost", ("/nonexistent",), {}, health.alive(60), SOURCES)])
    await until(lambda: bench.child("ghost").restarts >= 2)
    assert "ghost cannot be started: No such file or directory" in bench.said


async def test_a_fault_of_the_supervisor_is_seen_and_the_process_is_kept_as_it_is(bench: Bench) -> None:
    answers = iter([ZeroDivisionError("odd"), OSError("odd too")])

    async def check(_started_at: float) -> bool:
        if error := next(answers, None):
            raise error
        return True

    program = (sys.executable, "-c", "import time; time.sleep(600)")
    bench.supervisor.add([Service("web", program, dict(os.environ), check, SOURCES)])
    web = bench.child("web")
    await until(lambda: any("ZeroDivisionError: odd" in line for line in bench.said))
    pid = web.pid
    await until(lambda: web.state == "ready")
    assert (web.pid, web.restarts) == (pid, 0)
    assert any("web is kept again" in line and "OSError: odd too" in line for line in bench.said)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: web.state == "ready" and web.pid != pid)


async def test_output_goes_to_the_log_file_also_without_a_reader(bench: Bench) -> None:
    bench.supervisor.add([bench.server("web")])
    log = bench.folder / "web.log"
    await until(lambda: log.exists() and "request" in log.read_text())


async def test_a_dead_supervisors_processes_are_ended_but_strangers_and_engines_are_not(
    bench: Bench, tmp_path: Path
) -> None:
    state = StateFolder(tmp_path / "state").create()
    bench.supervisor.add([bench.server("web"), bench.server("agent-n1", AGENTS)])
    state.node("n1").mkdir()
    engine_env = os.environ | {ENV_ENGINE_HOME: str(state.node("n1")), ENV_ENGINE_MARKER: "n1/e/0/1"}
    engine = await asyncio.create_subprocess_exec("sleep", "60", env=engine_env, start_new_session=True)
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    await until(lambda: all(child.state == "ready" for child in bench.supervisor.children))
    running = [child.running() for child in bench.supervisor.children]
    # A recorded pid that belongs to another process by now:
    running.append(record.Running("control", "ready", time.time(), pid=stranger.pid, identity=identity(os.getpid())))
    record.write(state, Record(1, "gone", time.time(), "ready", "none", "u", "u", tuple(running)))

    # Its own supervisor would start them again: take it away, as kill -9 does.
    for task in bench.supervisor._tasks:
        task.cancel()
    ended = await asyncio.to_thread(stop_leftovers, state, with_engines=False)

    assert ended == ["web", "agent-n1"]
    assert bench.stops.read_text().splitlines() == ["web SIGTERM", "agent-n1 SIGTERM"]
    assert (engine.returncode, stranger.returncode) == (None, None)
    assert await asyncio.to_thread(stop_leftovers, state, with_engines=True) == [f"engine process {engine.pid}"]
    stranger.kill()
    await asyncio.gather(engine.wait(), stranger.wait())


async def test_a_part_of_an_engine_that_overwrote_its_environment_is_no_part_of_its_agent(tmp_path: Path) -> None:
    engine = "import subprocess, time; subprocess.Popen(['sleep', '600'], env={}); time.sleep(600)"
    agent = (
        f"import os, subprocess, sys, time; marked = {{**os.environ, {ENV_ENGINE_HOME!r}: 'x'}}; "
        f"subprocess.Popen([sys.executable, '-c', {engine!r}], start_new_session=True, env=marked); "
        "subprocess.Popen(['sleep', '600'], env={}); time.sleep(600)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", agent, start_new_session=True)
    try:
        await until(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 3)
        await until(lambda: len(family(process.pid)) == 2)
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            each.kill()
        await process.wait()

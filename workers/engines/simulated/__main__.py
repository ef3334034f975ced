"""The process of a simulated engine: `python -m workers.engines.simulated --spec FILE`.

The key comes by environment (VLLM_API_KEY), never in the file or argv. SIGTERM: new requests are refused, what runs may
finish for a while, then it is cut; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import uvloop

from controlplane.core.names import ENV_ENGINE_KEY
from workers.engines.simulated.admin import Admin
from workers.engines.simulated.app import App
from workers.engines.simulated.destination import KvDestination
from workers.engines.simulated.engine import Engine
from workers.engines.simulated.gang import ENV_GANG_KEY, Leader
from workers.engines.simulated.host import ThisProcess
from workers.engines.simulated.member import leader_of, serve_member
from workers.engines.simulated.settings import EventsConfig, Settings, read_settings
from workers.engines.simulated.source import KvSource

SHUTDOWN_S = 30.0
"""How long running requests may go on after SIGTERM; the agent kills an engine earlier if it was asked to."""
BACKLOG = 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until a signal. Returns 2 for a spec that cannot be run, 1 when a port is taken."""
    parser = argparse.ArgumentParser(prog="python -m workers.engines.simulated", description=__doc__)
    parser.add_argument("--spec", required=True, type=Path, help="JSON: spec, rank, host, port, side_port")
    for port in ("port", "side_port"):
        parser.add_argument(f"--{port.replace('_', '-')}", type=int, help="instead of the document's (a restart keeps them)")
    options = parser.parse_args(argv)
    try:
        settings = read_settings(orjson.loads(options.spec.read_bytes()))
        settings = replace(
            settings,
            hash_seed=os.environ.get("PYTHONHASHSEED", settings.hash_seed),
            port=options.port or settings.port,
            side_port=options.side_port or settings.side_port,
        )
        gang = _gang_key(settings)
    except (OSError, ValueError) as problem:  # SpecRefused and bad JSON are ValueErrors
        _say(f"cannot run {options.spec}: {problem}")
        return 2
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if settings.rank:
                return runner.run(_member(settings, gang))
            runner.run(serve(settings, os.environ.get(ENV_ENGINE_KEY, ""), options.spec, gang))
    except OSError as problem:
        _say(f"cannot listen on {settings.host}, ports {settings.port} and {settings.side_port}: {problem}")
        return 1
    return 0


def _gang_key(settings: Settings) -> bytes:
    """Raises ValueError if this rank could not prove that it belongs to its engine."""
    key = bytes.fromhex(os.environ.get(ENV_GANG_KEY, ""))
    if settings.ranks > 1 and len(key) != 32:
        raise ValueError(f"an engine of {settings.ranks} ranks needs the key of its gang in {ENV_GANG_KEY}")
    if settings.rank:
        leader_of(settings)
    return key


async def _member(settings: Settings, key: bytes) -> int:
    _say(f"{settings.engine} rank {settings.rank} of {settings.ranks} joins rank 0 at {settings.leader}")
    why = await serve_member(settings, key, _signals(asyncio.get_running_loop()), SHUTDOWN_S)
    if why:
        _say(f"{settings.engine} rank {settings.rank} ends: {why}")
    return 1 if why else 0


async def serve(settings: Settings, key: str, spec: Path, gang_key: bytes = b"") -> None:
    """Serves HTTP and the side port until SIGTERM or SIGINT. Raises OSError if it cannot listen. `spec` is read again by a
    fault that restarts the process."""
    loop = asyncio.get_running_loop()
    bytes_per_s = settings.network_gbps * 1e9 / 8 * settings.speed
    engine = Engine(settings, loop, os.urandom(16).hex())
    engine.loader = KvDestination(engine, loop, bytes_per_s)
    gang = _gang(engine, gang_key, loop) if settings.ranks > 1 else None
    source = KvSource(engine, bytes_per_s, gang)
    if settings.kv_events:
        _tell_events(engine, settings.kv_events, loop)
    side = await loop.create_server(source.connection, settings.host, settings.side_port)
    engine.offers.side_port = side.sockets[0].getsockname()[1]
    host = ThisProcess(_again(spec))
    app = App(engine, key, int(time.time()), Admin(engine, host), gang)
    web = await loop.create_server(app.connection, settings.host, settings.port, backlog=BACKLOG)
    port = web.sockets[0].getsockname()[1]
    host.keep_ports(port, engine.offers.side_port)
    loop.set_exception_handler(_crash)
    stop = _signals(loop)
    gc.collect()
    gc.freeze()  # what is here now stays: do not look at it again
    _say(
        f"{settings.engine} serves {settings.model} on {settings.host} port {port}, side port {engine.offers.side_port}: "
        f"{_gpus(settings)} x {settings.perf.gpu.name} ({settings.perf.basis}), "
        f"{settings.limits.num_blocks} blocks of {settings.limits.block_size} tokens"
    )
    await stop.wait()
    app.closing = True
    await _finish(engine, loop)
    if gang:
        gang.end()
        await asyncio.sleep(0.05)  # the word leaves before the connections end
    web.close()
    side.close()


def _gang(engine: Engine, key: bytes, loop: asyncio.AbstractEventLoop) -> Leader:
    def lost(why: str) -> None:
        _say(f"{engine.settings.engine} rank 0 ends: {why}")
        os._exit(1)

    return Leader(engine.settings.ranks, key, loop, lambda: engine.activity.lately(engine.now()), lost)


def _gpus(settings: Settings) -> str:
    degree = str(settings.perf.tensor_parallel)
    return f"{settings.ranks} x {degree}" if settings.ranks > 1 else degree


def _again(spec: Path) -> list[str]:
    """The command line that starts this engine anew."""
    return [sys.executable, "-m", "workers.engines.simulated", "--spec", str(spec)]


def _tell_events(engine: Engine, config: EventsConfig, loop: asyncio.AbstractEventLoop) -> None:
    """Publish KV events. Raises OSError. ZMQ and msgpack are loaded only now: they are megabytes for each engine."""
    from workers.engines.simulated.events import EventLog
    from workers.engines.simulated.publisher import Publisher

    settings = engine.settings
    latent = any(group.kind == "latent" for group in settings.perf.shape.attention)
    kind = "mla_attention" if latent else "full_attention"
    engine.tell_events(EventLog(settings.limits.block_size, kind, Publisher(config, loop).publish, time.time))


def _crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An engine whose step failed in a way nobody foresaw would hang for ever; as vLLM's, it ends instead."""
    error = context.get("exception")
    _say(f"{context.get('message', 'error')}: {error!r}")
    if isinstance(error, Exception) and not isinstance(error, OSError):
        traceback.print_exception(error)
        os._exit(1)


def _signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process."""
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, asked)
    return stop


async def _finish(engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
    """Let what is open end by itself for a while, then cut it."""
    empty = asyncio.Event()
    engine.on_empty = empty.set
    if engine.open:
        _say(f"stopping: {engine.open} open, up to {SHUTDOWN_S:g} s")
        try:
            await asyncio.wait_for(empty.wait(), SHUTDOWN_S)
        except TimeoutError:
            engine.abort_all()
    await asyncio.sleep(0.05)  # the last bytes leave


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

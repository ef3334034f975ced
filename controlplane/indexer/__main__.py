"""python -m controlplane.indexer: the precise index of one router host. A bad option is one clear line and exit status 2."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import orjson

from controlplane.common import metrics
from controlplane.common.places import Place, read_place
from controlplane.core.blockindex import MAX_BLOCKS
from controlplane.core.engine_args import KV_EVENTS, ArgumentRefused
from controlplane.indexer import wire
from controlplane.indexer.series import indexer_series
from controlplane.indexer.service import Service


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m controlplane.indexer", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, metavar="FILE", help="where this host's routers ask")
    parser.add_argument(
        "--events", metavar="tcp://ADDRESS:PORT", help="where engines connect and publish KV events (TWINPOOL_KV_EVENTS)"
    )
    parser.add_argument(
        "--replay", action="append", default=[], metavar="ENGINE=tcp://ADDRESS:PORT", help="an engine's replay_endpoint"
    )
    parser.add_argument("--metrics", default="", metavar="ADDRESS:PORT", help="serve /metrics for Prometheus there")
    parser.add_argument("--max-blocks", type=int, default=MAX_BLOCKS, help="of all engines; about 250 bytes each")
    parser.add_argument("--status", action="store_true", help="print what a running indexer holds, as JSON")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if args.status:
            return _status(args.socket)
        if args.events is None:
            raise _Unusable("--events tcp://ADDRESS:PORT is missing: where engines publish KV events.")
        if args.max_blocks < 1:
            raise _Unusable("--max-blocks must be a positive number.")
        replays = dict(map(_replay, args.replay))
        endpoint = _endpoint(args.events)
        place = _place(args.metrics) if args.metrics else None
        with _listener(args.socket) as listener:
            try:
                run(endpoint, listener, args.max_blocks, replays, place)
            finally:
                args.socket.unlink(missing_ok=True)
    except _Unusable as problem:
        return _complain(str(problem))
    except OSError as error:
        return _complain(f"cannot listen on {args.events} and {args.socket}: {error.strerror or error}. Choose others.")
    return 0


class _Unusable(ValueError):
    """A setting that cannot work; the message names the remedy."""


def run(
    endpoint: str, listener: socket.socket, max_blocks: int, replays: dict[str, str], metrics_at: Place | None = None
) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError."""
    import uvloop

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        service = Service(endpoint, max_blocks, replays)
        if metrics_at is not None:
            metrics.serve(metrics_at, metrics.registry(partial(indexer_series, service)))
        gc.collect()
        gc.freeze()
        await service.run(listener, stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _endpoint(text: str) -> str:
    try:
        return str(KV_EVENTS["endpoint"].check("--events", text))
    except ArgumentRefused as problem:
        raise _Unusable(str(problem)) from problem


def _place(text: str) -> Place:
    try:
        return read_place(text)
    except ValueError as problem:
        raise _Unusable(f"--metrics {problem}") from problem


def _replay(text: str) -> tuple[str, str]:
    engine, equals, address = text.partition("=")
    if not engine or not equals:
        raise _Unusable(f"--replay {text!r:.80}: write ENGINE=tcp://ADDRESS:PORT.")
    return engine, _endpoint(address)


def _listener(path: Path) -> socket.socket:
    """A unix socket at `path` that only this user can reach; one that nobody serves any more is replaced. Raises OSError,
    and _Unusable if somebody does serve it."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise _Unusable(f"another indexer serves {path}. Stop it, or choose another --socket.")
        path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _status(path: Path) -> int:
    reader = wire.Reader()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            connection.sendall(wire.pack([wire.STATUS, 1]))
            while data := connection.recv(1 << 16):
                for message in reader.feed(data):
                    sys.stdout.write(orjson.dumps(message[1], option=orjson.OPT_INDENT_2).decode() + "\n")
                    return 0
    except OSError as error:
        return _complain(f"no indexer answers on {path}: {error.strerror or error}. Start one with --socket {path}.")
    return _complain(f"no indexer answers on {path}.")


def _complain(problem: str) -> int:
    print(f"indexer: {problem}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main())

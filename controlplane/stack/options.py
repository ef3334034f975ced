"""The options of `up`, read and checked before anything is touched."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.core import names
from controlplane.core.scenes import SCENES
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, chosen
from controlplane.stack.ports import free_port, holder, is_free
from controlplane.stack.servers import is_own_address

CONSOLE_PORT, ROUTER_PORT = 8080, 8000


@dataclass(frozen=True)
class Options:
    state: StateFolder
    fleet: str
    traffic: bool
    console_port: int | None
    """None: the last one, else 8080. 0: the last one or any free one."""
    router_port: int | None
    host: str
    join_address: str
    router_processes: int
    indexer: bool
    """Whether engines tell an indexer what their caches hold."""
    detach: bool
    report_fd: int | None


def parse(arguments: Sequence[str], root: Path) -> Options:
    """Raises StackError for values that cannot work; argparse exits for words it does not know."""
    parser = argparse.ArgumentParser(prog="manage.py up", description="Start the whole stack on this machine.")
    parser.add_argument("--state", metavar="DIR", help="where everything is kept (default: TWINPOOL_STATE, else .twinpool)")
    parser.add_argument("--fleet", choices=sorted(SCENES), default="demo", help="what to start with (default: demo)")
    parser.add_argument("--traffic", choices=["on", "off"], help="send requests (default: on for demo and field)")
    parser.add_argument("--port", type=_port, metavar="N", help=f"console (default {CONSOLE_PORT}; 0: any free one)")
    parser.add_argument("--router-port", type=_port, metavar="N", help=f"router (default {ROUTER_PORT}; 0: any free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address of console and router (default 127.0.0.1)")
    parser.add_argument("--join-address", default="", metavar="IP", help="let agents of other machines reach Valkey here")
    parser.add_argument(
        "--router-processes", type=_processes, default=1, metavar="N", help="processes that are the router (default 1)"
    )
    parser.add_argument(
        "--indexer",
        action="store_true",
        help="let engines started from now on tell the router what their caches hold",
    )
    parser.add_argument("--detach", action="store_true", help="return when it is ready, and leave it running")
    parser.add_argument("--report-fd", type=int, help=argparse.SUPPRESS)
    read = parser.parse_args(arguments)
    for name, address in (("--host", read.host), ("--join-address", read.join_address)):
        _check_address(name, address)
    return Options(
        state=chosen(read.state, root),
        fleet=read.fleet,
        traffic=read.traffic == "on" if read.traffic else SCENES[read.fleet].traffic.by_default,
        console_port=read.port,
        router_port=read.router_port,
        host=read.host,
        join_address=read.join_address,
        router_processes=read.router_processes,
        indexer=read.indexer,
        detach=read.detach,
        report_fd=read.report_fd,
    )


def settle_port(wanted: int | None, last: int, default: int, host: str, what: str, option: str) -> int:
    """The port to listen on. A named, remembered or default one that is taken is an error, because people know it;
    `0` takes another. Raises StackError."""
    if wanted == 0:
        return free_port(last, host)
    port = wanted or last or default
    if not is_free(port, host):
        free = next((near for near in range(port + 1, port + 50) if near < 65536 and is_free(near, host)), 0)
        raise StackError(
            f"port {port} ({what}) is in use by {holder(port)}: stop that, or choose another, like {option} {free} (0: any)"
        )
    return port


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port (0 to 65535)")
    return number


def _processes(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= names.MOST_ROUTER_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text} is no number of processes (1 to {names.MOST_ROUTER_PROCESSES})")
    return number


def _check_address(option: str, address: str) -> None:
    if not address:
        return
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise StackError(
            f"{option} {address} is no IP address: use one of this machine, like 127.0.0.1 or 0.0.0.0"
        ) from None
    if not is_own_address(address):
        raise StackError(f"{option} {address} is not an address of this machine: use one that `ip address` shows")

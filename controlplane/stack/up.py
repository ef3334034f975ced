"""`manage.py up`: settle everything that can go wrong before a process is started, then run the stack."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import replace

from controlplane.config import BadSetting, config
from controlplane.core import names
from controlplane.core.scenes import SCENES
from controlplane.stack import endpoints, health, leftovers, record, servers
from controlplane.stack.detach import Report
from controlplane.stack.errors import StackError, explained
from controlplane.stack.options import CONSOLE_PORT, ROUTER_PORT, Options, settle_port
from controlplane.stack.ports import free_ports
from controlplane.stack.run import Stack
from controlplane.stack.scene_needs import prepare_models
from controlplane.stack.services import Plan, with_metrics_port

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path (sun_path in unix(7), with its NUL)."""


def run(options: Options) -> int:
    """Start, supervise until told to stop, stop. Returns the exit code. Raises StackError when it cannot start."""
    report = Report(options.report_fd)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the stack's loop takes it over
    try:
        with explained():
            return _run(options, report)
    except StackError as error:
        report.failed(str(error))
        raise
    except KeyboardInterrupt:
        report.failed("stopped while it started")
        raise


def _run(options: Options, report: Report) -> int:
    try:
        config()
    except BadSetting as error:
        raise StackError(str(error)) from error
    state = options.state.create()
    if options.indexer and len(os.fsencode(state.indexer)) > MAX_SOCKET_PATH:
        raise StackError(f"{state.path} is too long a path for the indexer's socket: choose a shorter --state")
    with record.only_supervisor(state), record.starting(state, options.fleet):
        given = endpoints.external()
        ended = leftovers.stop_leftovers(state, with_engines=False)
        if ended:
            report.say(f"stopped what the last run left: {', '.join(ended)}")
        servers.check_external(given)
        made = servers.resolve(state, _with_ports(endpoints.load(state), options), given, options.join_address)
        scene = SCENES[options.fleet]
        made = _with_metrics_ports(made, with_metrics_port(scene, indexer=options.indexer))
        endpoints.store(state, made.endpoints)
        plan = Plan(
            state=state,
            endpoints=made.endpoints,
            scene=scene,
            host=options.host,
            traffic=options.traffic and bool(scene.models),
            origins=_origins(options.host, made.endpoints.console_port),
            router_processes=options.router_processes,
            indexer=options.indexer,
            vllm_python=prepare_models(scene, state),
        )
        return asyncio.run(Stack(options, plan, made, report).run())


def _with_ports(stored: endpoints.Endpoints, options: Options) -> endpoints.Endpoints:
    """Raises StackError that names all ports which are taken."""
    settled: list[int] = []
    problems: list[str] = []
    for wanted, last, default, what, option in (
        (options.console_port, stored.console_port, CONSOLE_PORT, "console", "--port"),
        (options.router_port, stored.router_port, ROUTER_PORT, "router", "--router-port"),
    ):
        try:
            settled.append(settle_port(wanted, last, default, options.host, what, option))
        except StackError as error:
            problems.append(str(error))
    if problems:
        raise StackError("; ".join(problems))
    console, router = settled
    if console == router:
        raise StackError(f"console and router cannot share port {console}: choose another with --router-port")
    return replace(stored, console_port=console, router_port=router)


def _with_metrics_ports(made: servers.Servers, wanted: Iterable[str]) -> servers.Servers:
    """Pages that Prometheus asks for keep their ports as long as nobody takes them."""
    ends = made.endpoints
    ports = free_ports(ends.metrics_ports, wanted, ends.join_address or "127.0.0.1")
    return replace(made, endpoints=replace(ends, metrics_ports=ports))


def _origins(host: str, port: int) -> str:
    """The origins browsers may come from: this machine's, and those the operator named."""
    hosts = ["127.0.0.1", "localhost"]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        hosts.append(socket.gethostname())
    elif health.reachable(host) not in hosts:
        hosts.append(health.reachable(host))
    given = os.environ.get(names.ENV_CONSOLE_ORIGINS, "")
    return ",".join([*(f"http://{each}:{port}" for each in hosts), *([given] if given else [])])

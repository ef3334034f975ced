"""Which processes a stack consists of: their commands, environments, health checks, and the order they stop in. Decides
only; `supervisor.py` runs them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core import names
from controlplane.core.scenes import Scene, SceneNode
from controlplane.stack import health
from controlplane.stack.endpoints import Endpoints
from controlplane.stack.folder import StateFolder

# Stages of an ordered stop: what makes work first, then what serves, what runs engines, what records, what stores.
SOURCES, ROUTERS, AGENTS, RECORDERS, SERVERS = range(5)
PATIENCE_S: Mapping[int, float] = {SOURCES: 2.5, ROUTERS: 2.5, AGENTS: 5.0, RECORDERS: 1.5, SERVERS: 2.0}
"""How long a stage may take before it is killed; what is left of STOP_S at the end is the servers', which write to disk."""
STOP_S = 13.5
"""With half a second for killing, and ending this process, a stop stays below 15 s."""

AGENT = "agent-"

# Many small processes on one machine: one malloc arena each, and output line by line.
_LEAN = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2", "DJANGO_SETTINGS_MODULE": "controlplane.settings"}


@dataclass(frozen=True)
class Service:
    """A process to supervise. `after`: events that must have happened before it is started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    check: health.Check
    stage: int
    after: tuple[str, ...] = ()
    port: int = 0
    metrics: str = ""
    """URL of its page for Prometheus."""
    stop_signal: int = signal.SIGTERM
    spawn: Mapping[str, Any] = field(default_factory=dict)
    essential: bool = False
    """A start fails, instead of trying on, when this one does not come up."""


@dataclass(frozen=True)
class Plan:
    """What `up` was asked for, resolved."""

    state: StateFolder
    endpoints: Endpoints
    scene: Scene
    host: str
    traffic: bool
    origins: str
    vllm_python: str = ""
    router_processes: int = 1
    indexer: bool = False

    @property
    def metrics_address(self) -> str:
        """Where processes of the control plane serve /metrics: what other machines of the fleet reach, or this one alone."""
        return self.endpoints.join_address or "127.0.0.1"

    @property
    def console_url(self) -> str:
        return f"http://{health.reachable(self.host)}:{self.endpoints.console_port}"

    @property
    def router_url(self) -> str:
        return f"http://{health.reachable(self.host)}:{self.endpoints.router_port}"


def with_metrics_port(scene: Scene, *, indexer: bool) -> list[str]:
    """Names of the processes that need a port for /metrics alone."""
    return ["control", "ingest", *(["indexer"] if indexer else []), *(agent_name(node.name) for node in scene.nodes)]


def agent_name(node: str) -> str:
    """The service that is this node's agent."""
    return f"{AGENT}{node}"


def control_plane(plan: Plan, base: Mapping[str, str]) -> list[Service]:
    """Every process but the servers. `base`: the environment they start from, without secrets."""
    common = {**base, **_LEAN, names.ENV_STATE: str(plan.state.path)}
    services = [_web(plan, common), _router(plan, common), _control(plan, common), _ingest(plan, common)]
    if plan.indexer:
        services.append(_indexer(plan, common))
    services += [_agent(plan, node, common) for node in plan.scene.nodes]
    if plan.traffic:
        services.append(_traffic(plan, common))
    return services


def django_environment(plan: Plan, base: Mapping[str, str]) -> dict[str, str]:
    """For a process that imports Django, with the application's role."""
    ends = plan.endpoints
    events = {names.ENV_KV_EVENTS: _kv_events(plan)} if plan.indexer else {}
    join = {names.ENV_JOIN_ADDRESS: ends.join_address} if ends.join_address else {}
    mail = {name: os.environ[name] for name in (names.ENV_SMTP_URL,) if name in os.environ}
    return {
        **base,
        **_LEAN,
        **plan.state.environment(),
        **_brokers(plan),
        **events,
        **mail,
        **join,
        names.ENV_DATABASE_URL: ends.database_url,
        names.ENV_CONSOLE_ORIGINS: plan.origins,
    }


def _metrics(plan: Plan, name: str) -> str:
    """Where a process of the control plane serves /metrics, as its setting or option takes it."""
    return f"{health.reachable(plan.metrics_address)}:{plan.endpoints.metrics_ports[name]}"


def _web(plan: Plan, common: Mapping[str, str]) -> Service:
    port = plan.endpoints.console_port
    proxies = common.get(names.ENV_TRUSTED_PROXIES, "")
    trust = ("--proxies", proxies) if proxies else ()
    return Service(
        name="web",
        argv=_python("-m", "controlplane.live.server", "--host", plan.host, "--port", str(port), *trust),
        env=django_environment(plan, common),
        check=health.http(plan.host, port, "/healthz"),
        stage=SOURCES,
        after=("postgres", "valkey"),
        port=port,
        metrics=f"{plan.console_url}/metrics",
        essential=True,
    )


def _router(plan: Plan, common: Mapping[str, str]) -> Service:
    port = plan.endpoints.router_port
    cache = plan.state.router / "table.json"
    where = ("--host", plan.host, "--port", str(port), "--id", f"{socket.gethostname()}-{port}")
    more = ("--processes", str(plan.router_processes), *(("--indexer", str(plan.state.indexer)) if plan.indexer else ()))
    return Service(
        name="router",
        argv=_python("-m", "controlplane.router", *where, "--cache", str(cache), *more),
        env={**common, **_brokers(plan), names.ENV_FLEET_SECRET_FILE: str(plan.state.fleet_key)},
        check=health.http(plan.host, port, "/livez"),
        stage=ROUTERS,
        after=("valkey",),
        port=port,
        metrics=f"{plan.router_url}/metrics",
        essential=True,
    )


def _indexer(plan: Plan, common: Mapping[str, str]) -> Service:
    socket_file = str(plan.state.indexer)
    argv = _python("-m", "controlplane.indexer", "--socket", socket_file, "--events", _kv_events(plan))
    return Service(
        name="indexer",
        argv=(*argv, "--metrics", _metrics(plan, "indexer")),
        env=common,
        check=health.listens_at(socket_file),
        stage=ROUTERS,
        metrics=f"http://{_metrics(plan, 'indexer')}/metrics",
    )


def _kv_events(plan: Plan) -> str:
    """Where engines, also those of machines that join, tell what their caches hold."""
    return f"tcp://{health.reachable(plan.endpoints.join_address or '127.0.0.1')}:{plan.endpoints.indexer_port}"


def _control(plan: Plan, common: Mapping[str, str]) -> Service:
    worker = ("-m", "celery", "-A", "controlplane.celery", "worker", "-Q", names.CONTROL_QUEUE, "-n", "control@twinpool")
    lean = ("-P", "threads", "-c", "4", "--without-gossip", "--without-mingle", "-l", "INFO")
    return Service(
        name="control",
        argv=_python(*worker, *lean),
        env=django_environment(plan, common) | {names.ENV_METRICS: _metrics(plan, "control")},
        check=health.control(plan.endpoints.valkey_url),
        stage=SOURCES,
        metrics=f"http://{_metrics(plan, 'control')}/metrics",
        after=("provisioned",),
    )


def _ingest(plan: Plan, common: Mapping[str, str]) -> Service:
    return Service(
        name="ingest",
        argv=_python("manage.py", "ingest"),
        env=django_environment(plan, common) | {names.ENV_METRICS: _metrics(plan, "ingest")},
        check=health.ingest(plan.endpoints.valkey_url),
        stage=RECORDERS,
        metrics=f"http://{_metrics(plan, 'ingest')}/metrics",
        after=("provisioned",),
    )


def _agent(plan: Plan, node: SceneNode, common: Mapping[str, str]) -> Service:
    labels = [part for key, value in sorted(node.labels.items()) for part in ("--label", f"{key}={value}")]
    where = ("--state", str(plan.state.node(node.name)), "--accelerators", node.accelerators, "--address", "127.0.0.1")
    vllm = {names.ENV_VLLM_PYTHON: plan.vllm_python} if plan.vllm_python else {}
    name = agent_name(node.name)
    port = plan.endpoints.metrics_ports[name]
    return Service(
        name=name,
        argv=_python("-m", "workers", "--node", node.name, *where, "--metrics-port", str(port), *labels),
        env={**common, **_brokers(plan), **vllm, names.ENV_NODE_KEY_FILE: str(plan.state.node_key(node.name))},
        check=health.agent(plan.endpoints.valkey_url, node.name),
        stage=AGENTS,
        metrics=f"http://127.0.0.1:{port}/metrics",
        after=("valkey",),
        stop_signal=signal.SIGUSR1,
    )


def _traffic(plan: Plan, common: Mapping[str, str]) -> Service:
    wanted = plan.scene.traffic
    load = ["--rate", f"{wanted.requests_per_s:g}"]
    if wanted.prompt_tokens and wanted.answer_tokens:
        load += ["--prompt-tokens", str(wanted.prompt_tokens), "--answer-tokens", str(wanted.answer_tokens)]
    return Service(
        name="traffic",
        argv=_python("-m", "controlplane.traffic", "--router", plan.router_url, *load),
        env=common,
        check=health.alive(0.5),
        stage=SOURCES,
        after=("served",),
    )


def _brokers(plan: Plan) -> dict[str, str]:
    ends = plan.endpoints
    telemetry = {names.ENV_TELEMETRY_URL: ends.telemetry_url} if ends.telemetry_url else {}
    return {names.ENV_VALKEY_URL: ends.valkey_url, **telemetry}


def _python(*args: str) -> tuple[str, ...]:
    return (sys.executable, *args)


ROOT = Path(__file__).resolve().parents[2]
"""The checkout: every process runs here."""

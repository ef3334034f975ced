"""What an agent is told at its start: command line for the plain, environment for the secret. Checked once, here."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from controlplane.common import valkey
from controlplane.common.files import BadKey, read_key
from controlplane.common.places import Place
from controlplane.core import names
from controlplane.core.accelerators import MEMORY_BYTES
from workers.keys import NodeKeys

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What engines and secrets are called: safe as a file name and a part of a key."""

MAX_SIMULATED = 64


class BadConfig(ValueError):
    """The agent cannot start with this command line or environment; the message names the remedy."""


@dataclass(frozen=True)
class Accelerators:
    """`source` is sim, cpu or nvml; `count` and `kind` are of simulated GPUs and CPU slots only."""

    source: str
    count: int = 0
    kind: str = ""


@dataclass(frozen=True)
class AgentConfig:
    node: str
    state: Path
    accelerators: Accelerators
    address: str
    broker_url: str = field(repr=False)
    telemetry_url: str = field(repr=False)
    node_key: NodeKeys = field(repr=False)
    network_gbps: float = 100.0
    labels: Mapping[str, str] = field(default_factory=dict)
    log_limit_bytes: int = 16 * 2**20
    metrics: Place | None = None
    """Where it serves /metrics."""

    @property
    def logs(self) -> Path:
        return self.state / "logs"


def read_config(argv: Sequence[str] | None, environ: Mapping[str, str]) -> AgentConfig:
    """The configuration from a command line and an environment. Raises BadConfig, or SystemExit 2 for a bad option."""
    options = _parser().parse_args(argv)
    broker = environ.get(names.ENV_VALKEY_URL, "")
    if not broker:
        raise BadConfig(f"{names.ENV_VALKEY_URL} is not set: give the broker as redis://:password@host:port/0")
    telemetry = environ.get(names.ENV_TELEMETRY_URL) or broker
    for name, url in ((names.ENV_VALKEY_URL, broker), (names.ENV_TELEMETRY_URL, telemetry)):
        if not valkey.usable(url):
            raise BadConfig(f"{name} is no usable URL: write it like redis://:password@host:6379/0")
    key_file = environ.get(names.ENV_NODE_KEY_FILE, "")
    if not key_file:
        raise BadConfig(f"{names.ENV_NODE_KEY_FILE} is not set: give the file with this node's key")
    try:
        node_key = NodeKeys(options.state.resolve() / "node.keys", read_key(Path(key_file), "the node key"))
    except BadKey as error:
        raise BadConfig(str(error)) from error
    return AgentConfig(
        node=options.node,
        state=options.state.resolve(),
        accelerators=options.accelerators,
        address=options.address,
        broker_url=broker,
        telemetry_url=telemetry,
        node_key=node_key,
        network_gbps=options.network_gbps,
        labels=dict(options.label),
        log_limit_bytes=options.log_limit_bytes,
        metrics=Place(options.address, options.metrics_port) if options.metrics_port else None,
    )


def parse_accelerators(text: str) -> Accelerators:
    """`sim:8xh100-sxm`, `cpu:2` or `nvml`. Raises ValueError saying what is allowed."""
    source, _, rest = text.partition(":")
    if source == "nvml" and not rest:
        return Accelerators("nvml")
    if source == "cpu" and rest.isdecimal() and 1 <= int(rest) <= MAX_SIMULATED:
        return Accelerators("cpu", int(rest), "cpu")
    count, _, kind = rest.partition("x")
    if source == "sim" and count.isdecimal() and 1 <= int(count) <= MAX_SIMULATED and kind in MEMORY_BYTES:
        return Accelerators("sim", int(count), kind)
    raise ValueError(
        f"{text!r:.60} is not one of nvml, cpu:N, sim:NxKIND (N up to {MAX_SIMULATED}; KIND: {', '.join(MEMORY_BYTES)})"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m workers", description="Twinpool's node agent: runs and watches engines.")
    parser.add_argument("--node", required=True, type=_option(names.check_node_name), help="this node's name")
    parser.add_argument("--state", required=True, type=Path, help="the agent's own folder")
    parser.add_argument(
        "--accelerators", required=True, type=_option(parse_accelerators), help="nvml, cpu:2 or sim:8xh100-sxm"
    )
    parser.add_argument("--address", required=True, help="address that engines bind and routers use")
    parser.add_argument("--network-gbps", type=_option(_rate), default=100.0, help="bandwidth to the other nodes")
    parser.add_argument("--label", action="append", type=_option(names.read_label), default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--metrics-port", type=_option(_port), default=0, help="serve /metrics for Prometheus on the node's address (0: not)"
    )
    parser.add_argument("--log-limit-bytes", type=int, default=16 * 2**20, help="size at which an engine's log is rotated")
    return parser


def _option(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` for argparse, which would hide the message of a ValueError."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r:.40} is no port (0 to 65535)")
    return int(text)


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.1 <= rate <= 100_000:
        raise ValueError(f"{text!r:.40} is not a bandwidth in Gb/s from 0.1 to 100000")
    return rate

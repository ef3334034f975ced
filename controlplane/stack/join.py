"""Joining a real node: `join-token` on the control plane makes what `agent` on the node reads.

A token holds the node's own key and the broker's address with its password: whoever has it can act as that node, no other.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import ipaddress
import json
import os
import select
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import django
from django.db import OperationalError

from controlplane.common.files import BadKey, read_key, write_private
from controlplane.core import names, signing
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.stack import endpoints, health
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, chosen, read_json
from controlplane.stack.services import ROOT

METRICS_PORT = 9464
_PIPE_S = 20.0


@dataclass(frozen=True)
class JoinToken:
    node: str
    node_key: str = field(repr=False)
    """Hex."""
    valkey_url: str = field(repr=False)
    telemetry_url: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        names.check_node_name(self.node)
        if len(bytes.fromhex(self.node_key)) != 32:
            raise ValueError("node_key must be 32 bytes")

    def text(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(encode(self)).encode()).decode()

    @classmethod
    def read(cls, text: str) -> JoinToken:
        """Raises StackError for anything but a token."""
        try:
            return decode(cls, json.loads(base64.urlsafe_b64decode(text.strip().encode())))
        except (binascii.Error, ValueError, RecursionError, WrongShape):
            raise StackError("this is no join token: copy the whole line that `manage.py join-token NODE` printed") from None


def print_token(arguments: Sequence[str], root: Path) -> int:
    """`join-token NODE [--address HOST[:PORT]]`: makes the node known, so that its agent's facts are taken, and prints the
    token, which alone goes to standard output. The password of Valkey is the stored one: it is never an argument."""
    parser = argparse.ArgumentParser(prog="manage.py join-token", description="Print a token for a node's agent (a secret).")
    parser.add_argument("node", help="the node's name: letters, digits, - and _")
    parser.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        default="",
        help="how that node reaches the stack's Valkey (default: --join-address of `up`, else where the stack has it)",
    )
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    secret = _fleet_secret(state)
    try:
        names.check_node_name(read.node)
    except ValueError as error:
        raise StackError(str(error)) from error
    known = endpoints.load(state)
    broker = os.environ.get(names.ENV_VALKEY_URL) or known.valkey_url
    if not broker:
        raise StackError(f"no Valkey is known yet: start the stack once, or set {names.ENV_VALKEY_URL}")
    url = join_url(broker, read.address or known.join_address)
    if health.is_loopback(urlsplit(url).hostname or ""):
        message = "this token works on this machine only: start `up` with --join-address IP, or give --address"
        print(f"twinpool: {message}", file=sys.stderr)
    _make_known(state, read.node)
    key = signing.node_key(secret, read.node).hex()
    telemetry = os.environ.get(names.ENV_TELEMETRY_URL) or known.telemetry_url
    print(JoinToken(read.node, key, url, telemetry).text())
    return 0


def _fleet_secret(state: StateFolder) -> bytes:
    """Of the file that the environment names (no stack of `up`), else of the state folder. Raises StackError."""
    if not (named := os.environ.get(names.ENV_FLEET_SECRET_FILE)):
        if not state.fleet_key.is_file():
            raise StackError(
                f"there is no control plane in {state.path}: start one with `manage.py up`, or name it with --state"
            )
        return state.fleet_secret()
    try:
        return read_key(Path(named), "the fleet secret")
    except BadKey as error:
        raise StackError(str(error)) from error


def run_agent(arguments: Sequence[str], root: Path) -> int:
    """`agent`: become `python -m workers` for the node of the token. A token that was read once is kept in the state folder,
    so that a service manager can start the agent again without it."""
    parser = argparse.ArgumentParser(
        prog="manage.py agent",
        description=f"Join this machine to a fleet. The token comes from {names.ENV_JOIN_TOKEN} or standard input.",
    )
    parser.add_argument("--state", metavar="DIR")
    parser.add_argument("--accelerators", default="nvml", help="nvml (default), cpu:N or sim:8xh100-sxm")
    parser.add_argument("--address", default="", help="this node's address for peers (default: the one towards Valkey)")
    parser.add_argument("--label", action="append", default=[], metavar="K=V")
    parser.add_argument(
        "--metrics-port", default=str(METRICS_PORT), metavar="N", help=f"/metrics (default {METRICS_PORT}; 0: none)"
    )
    read = parser.parse_args(arguments)
    state = chosen(read.state, root).create(for_node=True)
    token = _token(state)
    key_file = state.secrets / "node.key"
    write_private(key_file, bytes.fromhex(token.node_key))
    home = state.node(token.node)
    home.mkdir(mode=0o700, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name != names.ENV_JOIN_TOKEN}
    env |= {
        names.ENV_STATE: str(state.path),
        names.ENV_VALKEY_URL: token.valkey_url,
        names.ENV_NODE_KEY_FILE: str(key_file),
        "PYTHONUNBUFFERED": "1",
    }
    if token.telemetry_url:
        env[names.ENV_TELEMETRY_URL] = token.telemetry_url
    address = read.address or address_towards(token.valkey_url)
    command = [sys.executable, "-m", "workers", "--node", token.node, "--state", str(home)]
    command += ["--accelerators", read.accelerators, "--address", address, "--metrics-port", read.metrics_port]
    command += [part for label in read.label for part in ("--label", label)]
    os.chdir(ROOT)
    os.execve(command[0], command, env)  # noqa: S606 - no shell is wanted


def address_towards(url: str) -> str:
    """This machine's address on the way to a server (nothing is sent). Raises StackError if there is no way."""
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 6379, type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise StackError(f"no way to {parts.hostname}: {error.strerror}; check the network, or give --address") from error


def _make_known(state: StateFolder, node: str) -> None:
    """The node's row, unless it is there. Without a database the operator is told what to do once there is one."""
    endpoints.adopt(state)
    django.setup()
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.control.auditing.events import note_secret
    from controlplane.fleet.models import Node

    try:
        if not Node.objects.filter(name=node).exists():
            actions.add_node(Actor.command_line(), node, reason="join-token")
        note_secret(Actor.command_line().name, f"node:{node}")
    except OperationalError:
        message = f"twinpool: the database does not answer: run `manage.py add_node {node}` when the stack runs"
        print(message, file=sys.stderr)


def _token(state: StateFolder) -> JoinToken:
    """The token given now, which is then kept, else the kept one. Says which. Raises StackError."""
    kept = state.join_file
    source, text = names.ENV_JOIN_TOKEN, os.environ.get(names.ENV_JOIN_TOKEN, "").strip()
    if not text:
        source, text = "standard input", _typed(has_other=kept.is_file()).strip()
    if text:
        token = JoinToken.read(text)
        write_private(kept, json.dumps(encode(token)).encode())
    elif kept.is_file():
        source = str(kept)
        try:
            token = decode(JoinToken, read_json(kept))
        except WrongShape as error:
            raise StackError(f"{kept} is damaged: remove it and give the join token again") from error
    else:
        raise StackError(f"no join token: set {names.ENV_JOIN_TOKEN}, or pipe what `manage.py join-token NODE` printed")
    print(f"twinpool: joining as node {token.node} with the token of {source}", file=sys.stderr, flush=True)
    return token


def _typed(*, has_other: bool) -> str:
    """The token on standard input. With another one at hand a person is not asked, and a pipe on which nothing comes (a
    service manager may leave one open) is not waited for for ever."""
    if sys.stdin is None or (has_other and sys.stdin.isatty()):
        return ""
    if sys.stdin.isatty():
        print("twinpool: paste the join token", file=sys.stderr)
    elif has_other and not select.select([sys.stdin], [], [], 1.0)[0]:
        wait = f"waiting {_PIPE_S:.0f} s for a join token on standard input, before the stored one is used"
        print(f"twinpool: {wait}", file=sys.stderr, flush=True)
        if not select.select([sys.stdin], [], [], _PIPE_S)[0]:
            return ""
    return sys.stdin.readline()


def join_url(url: str, address: str) -> str:
    """The URL of a Valkey, password included, as it is reached at `address` (HOST or HOST:PORT; empty: as it is). Raises
    StackError."""
    if not address:
        return url
    parts = urlsplit(url)
    host = f"[{address}]" if _is_ipv6(address) else address
    try:
        named = urlsplit(f"//{host}")
        good = bool(named.hostname) and named.netloc == host and not {"@", " "} & set(host) and named.port != 0
        port = named.port or parts.port
    except ValueError:
        good = False
    if not good:
        raise StackError(f"--address {address:.80} is no address: write HOST or HOST:PORT, like 10.0.0.1:6379")
    bare = f"[{named.hostname}]" if ":" in (named.hostname or "") else named.hostname
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{bare}" + (f":{port}" if port else "")))


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False

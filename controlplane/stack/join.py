"""Joining a real node: `join-token` on the control plane makes what `agent` on the node reads.

A token holds the node's own key and the broker's address with its password: whoever has it can act as that node, no other.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import django
from django.db import OperationalError

from controlplane.common.files import write_private
from controlplane.core import names, signing
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.stack import endpoints, health
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, chosen, read_json
from controlplane.stack.services import ROOT

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
ENV_JOIN_TOKEN = "TWINPOOL_JOIN_TOKEN"  # noqa: S105 - a variable's name


@dataclass(frozen=True)
class JoinToken:
    node: str
    node_key: str = field(repr=False)
    """Hex."""
    valkey_url: str = field(repr=False)
    telemetry_url: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_node_name(self.node)
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


def check_node_name(name: str) -> None:
    """Raises ValueError unless `name` may name a node: it becomes part of paths, queues and command lines."""
    if not _NODE.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no node name: use letters, digits, `-` and `_`, at most 63")


def print_token(arguments: Sequence[str], root: Path) -> int:
    """`join-token NODE [--valkey-url URL]`: makes the node known, so that its agent's facts are taken, and prints the token.
    The token alone goes to standard output."""
    parser = argparse.ArgumentParser(prog="manage.py join-token", description="Print a token for a node's agent (a secret).")
    parser.add_argument("node", help="the node's name: letters, digits, - and _")
    parser.add_argument("--valkey-url", help="how that node reaches Valkey (default: --join-address of `up`, else loopback)")
    parser.add_argument("--telemetry-url", default="", help="another server for telemetry")
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    if not state.fleet_key.is_file():
        raise StackError(
            f"there is no control plane in {state.path}: start one with `manage.py up`, or name it with --state"
        )
    try:
        check_node_name(read.node)
    except ValueError as error:
        raise StackError(str(error)) from error
    known = endpoints.load(state)
    url = read.valkey_url or _join_url(known)
    if not url:
        raise StackError("no Valkey is known yet: start the stack once, or give --valkey-url")
    endpoints.check_broker_url("--valkey-url", url)
    if health.is_loopback(urlsplit(url).hostname or ""):
        print("twinpool: this token works on this machine only: start `up` with --join-address IP", file=sys.stderr)
    _make_known(state, read.node)
    key = signing.node_key(state.fleet_secret(), read.node).hex()
    print(JoinToken(read.node, key, url, read.telemetry_url or known.telemetry_url).text())
    return 0


def run_agent(arguments: Sequence[str], root: Path) -> int:
    """`agent`: become `python -m workers` for the node of the token. A token that was read once is kept in the state folder,
    so that a service manager can start the agent again without it."""
    parser = argparse.ArgumentParser(
        prog="manage.py agent",
        description=f"Join this machine to a fleet. The token comes from {ENV_JOIN_TOKEN} or standard input.",
    )
    parser.add_argument("--state", metavar="DIR")
    parser.add_argument("--accelerators", default="nvml", help="nvml (default), cpu:N or sim:8xh100-sxm")
    parser.add_argument("--address", default="", help="this node's address for peers (default: the one towards Valkey)")
    parser.add_argument("--label", action="append", default=[], metavar="K=V")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root).create(for_node=True)
    token = _token(state)
    key_file = state.secrets / "node.key"
    write_private(key_file, bytes.fromhex(token.node_key))
    home = state.node(token.node)
    home.mkdir(mode=0o700, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name != ENV_JOIN_TOKEN}
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
    command += ["--accelerators", read.accelerators, "--address", address]
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
    for name, value in endpoints.stored_environment(state).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    from controlplane.control import actions, cli
    from controlplane.fleet.models import Node

    try:
        if not Node.objects.filter(name=node).exists():
            actions.add_node(cli.actor(), node, reason="join-token")
    except OperationalError:
        message = f"twinpool: the database does not answer: run `manage.py add_node {node}` when the stack runs"
        print(message, file=sys.stderr)


def _token(state: StateFolder) -> JoinToken:
    kept = state.secrets / "join.json"
    text = os.environ.get(ENV_JOIN_TOKEN, "")
    if not text and kept.is_file():
        return decode(JoinToken, read_json(kept))
    if not text:
        if sys.stdin.isatty():
            print("twinpool: paste the join token", file=sys.stderr)
        text = sys.stdin.readline()
    if not text.strip():
        raise StackError(f"no join token: set {ENV_JOIN_TOKEN}, or pipe what `manage.py join-token NODE` printed")
    token = JoinToken.read(text)
    write_private(kept, json.dumps(encode(token)).encode())
    return token


def _join_url(known: endpoints.Endpoints) -> str:
    if not (known.valkey_url and known.join_address):
        return known.valkey_url
    parts = urlsplit(known.valkey_url)
    host = f"[{known.join_address}]" if ":" in known.join_address else known.join_address
    login, _, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}:{parts.port}"))

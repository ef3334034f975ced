"""Joining a real node: `join-token` on the control plane makes the token, `agent` on the node joins with it, once, and
keeps what it got: the node's own key and its own user of the broker."""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import django
from django.db import OperationalError

from controlplane.common.files import BadKey, write_private
from controlplane.common.jointoken import BadToken, Joined, JoinToken, join_url, read_token, without_user
from controlplane.core import names
from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.joining import TOKEN_HOURS
from controlplane.stack import endpoints, health
from controlplane.stack.asking import join as ask_to_join
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder, chosen, read_json
from controlplane.stack.services import ROOT

METRICS_PORT = 9464
_PIPE_S = 20.0


def print_token(arguments: Sequence[str], root: Path) -> int:
    """`join-token NODE [--address HOST[:PORT]] [--hours H]`: makes a token with which one machine joins once, and prints it,
    alone on standard output."""
    parser = argparse.ArgumentParser(prog="manage.py join-token", description="Print a token for a node's agent (a secret).")
    parser.add_argument("node", help="the node's name: letters, digits, - and _")
    parser.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        default="",
        help="how that node reaches the stack's Valkey (default: --join-address of `up`, else where the stack has it)",
    )
    parser.add_argument(
        "--hours", type=float, default=TOKEN_HOURS, metavar="H", help=f"it can be used so long (default {TOKEN_HOURS:g})"
    )
    parser.add_argument("--state", metavar="DIR")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    if names.ENV_FLEET_SECRET_FILE not in os.environ and not state.fleet_key.is_file():
        raise StackError(
            f"there is no control plane in {state.path}: start one with `manage.py up`, or name it with --state"
        )
    try:
        names.check_node_name(read.node)
    except ValueError as error:
        raise StackError(str(error)) from error
    known = endpoints.load(state)
    broker = os.environ.get(names.ENV_VALKEY_URL) or known.valkey_url
    if not broker:
        raise StackError(f"no Valkey is known yet: start the stack once, or set {names.ENV_VALKEY_URL}")
    try:
        url = join_url(broker, read.address or os.environ.get(names.ENV_JOIN_ADDRESS) or known.join_address)
    except BadToken as error:
        raise StackError(str(error)) from error
    telemetry = os.environ.get(names.ENV_TELEMETRY_URL) or known.telemetry_url
    number, secret = _make(state, read.node, read.hours)
    if health.is_loopback(urlsplit(url).hostname or ""):
        message = "this token works on this machine only: start `up` with --join-address IP, or give --address"
        print(f"twinpool: {message}", file=sys.stderr)
    print(JoinToken(number, read.node, secret.hex(), url, without_user(telemetry)).text())
    return 0


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
    token = _joined(state)
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


def _make(state: StateFolder, node: str, hours: float) -> tuple[int, bytes]:
    """A new token's number and secret. Raises StackError."""
    endpoints.adopt(state)
    django.setup()
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.control.auditing.events import note_secret
    from controlplane.control.refused import Refused

    actor = Actor.command_line()
    try:
        _, token, secret = actions.add_join_token(actor, node, hours=hours, reason="join-token")
        note_secret(actor.name, f"node:{node}")
    except Refused as refused:
        raise StackError("; ".join(refused.reasons)) from refused
    except BadKey as error:
        raise StackError(str(error)) from error
    except OperationalError as error:
        raise StackError("the database does not answer: start the stack, then make the token again") from error
    return token.pk, secret


def _joined(state: StateFolder) -> Joined:
    """What this machine is as a node: as the token given now says, which it joins with unless it has; else as it joined
    before. Says which. Raises StackError."""
    kept = _kept(state)
    source, text = names.ENV_JOIN_TOKEN, os.environ.get(names.ENV_JOIN_TOKEN, "").strip()
    if not text:
        source, text = "standard input", _typed(has_other=state.join_file.is_file()).strip()
    if not text:
        if kept is None:
            raise StackError(f"no join token: set {names.ENV_JOIN_TOKEN}, or pipe what `manage.py join-token NODE` printed")
        print(f"twinpool: node {kept.node}, which joined before ({state.join_file})", file=sys.stderr, flush=True)
        return kept
    try:
        token = read_token(text)
    except BadToken as error:
        raise StackError(str(error)) from error
    if isinstance(token, JoinToken) and kept is not None and kept.token == token.digest():
        print(f"twinpool: node {kept.node}, which has joined with the token of {source}", file=sys.stderr, flush=True)
        return kept
    print(f"twinpool: joining as node {token.node} with the token of {source}", file=sys.stderr, flush=True)
    if isinstance(token, JoinToken):
        return ask_to_join(state, token)
    write_private(state.join_file, json.dumps(encode(token)).encode())
    return token


def _kept(state: StateFolder) -> Joined | None:
    """Raises StackError."""
    if not state.join_file.is_file():
        return None
    try:
        return decode(Joined, read_json(state.join_file))
    except WrongShape as error:
        raise StackError(f"{state.join_file} is damaged: remove it and join with a new token") from error


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

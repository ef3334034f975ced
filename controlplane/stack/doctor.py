"""`manage.py doctor`: looks at everything that is known to go wrong and says the remedy. Changes nothing.

On a machine that joined a fleet it looks at what a node needs. What cannot be asked is a finding, never a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import django
import psycopg
import redis
from django.core import checks
from django.db.migrations.loader import MigrationLoader

from controlplane.common.files import BadKey
from controlplane.common.keyring import Keyring
from controlplane.common.valkey import UNREACHABLE, connect_sync, describe, usable
from controlplane.config import BadSetting
from controlplane.core import checkup, names
from controlplane.core.checkup import Finding
from controlplane.stack import doctor_fleet, doctor_links, doctor_machine, doctor_servers, endpoints, joined
from controlplane.stack.backup import first_line
from controlplane.stack.doctor_servers import Rows
from controlplane.stack.folder import StateFolder, chosen, read_json

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
_NO_REACH_MORE_THAN = 64


def run(arguments: Sequence[str], root: Path) -> int:
    parser = argparse.ArgumentParser(
        prog="manage.py doctor",
        description="Look for what is wrong and say the remedy. Exit code 0: nothing fails, 1: something does.",
    )
    parser.add_argument("--state", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object with all findings")
    parser.add_argument("--links", action="store_true", help="also measure links between nodes: a second of load on each")
    read = parser.parse_args(arguments)
    state = chosen(read.state, root)
    found = list(node(state) if joined.node_name(state) else control_plane(state, links=read.links))
    code = checkup.exit_code(found)
    if read.json:
        print(json.dumps({"ok": code == 0, "findings": [asdict(each) for each in found]}, indent=1))
    else:
        print(_text(found))
    return code


def node(state: StateFolder) -> Iterator[Finding]:
    """What a machine with an agent needs."""
    name = joined.node_name(state)
    yield from _machine(state)
    pid = joined.agent_pid(state, name)
    if pid:
        yield Finding("agent", name, "ok", f"runs (pid {pid})")
    else:
        yield Finding("agent", name, "fail", "does not run", "start it: manage.py agent, or its service")
    url = str(read_json(state.join_file).get("valkey_url", ""))
    yield from doctor_servers.broker("valkey", url)
    if usable(url):
        yield from _own_clock(url)
    yield doctor_machine.gpus(expected=_uses_nvml(pid))


def control_plane(state: StateFolder, *, links: bool = False) -> Iterator[Finding]:
    """`links`: measure those between nodes too."""
    try:
        endpoints.adopt(state)
        django.setup()
    except BadSetting as error:
        yield Finding("settings", "environment", "fail", str(error), "correct it, then ask again")
        return
    except PermissionError:
        remedy = "become that user, or name yours with --state"
        yield Finding("secrets", str(state.path), "fail", "belongs to another user", remedy)
        return
    yield from _system_checks()
    yield from _machine(state)
    yield from doctor_machine.ports(state)
    rows = yield from _database()
    broker = os.environ.get(names.ENV_VALKEY_URL, "")
    if not broker:
        remedy = f"start the stack, name its folder with --state, or set {names.ENV_VALKEY_URL}"
        yield Finding("broker", "valkey", "fail", "none is known here", remedy)
        return
    yield from doctor_servers.broker("valkey", broker)
    if (telemetry := os.environ.get(names.ENV_TELEMETRY_URL, broker)) != broker:
        yield from doctor_servers.broker("telemetry", telemetry)
    yield from _own_clock(broker)
    yield from _fleet(state, broker, rows, links=links)
    yield from doctor_machine.connectors(rows.connectors)


def _machine(state: StateFolder) -> Iterator[Finding]:
    yield doctor_machine.packages()
    yield doctor_machine.disk(state)
    if state.secrets.is_dir():
        yield doctor_machine.key_files(state)


def _system_checks() -> Iterator[Finding]:
    for message in checks.run_checks():
        if message.level >= checks.WARNING:
            level: checkup.Level = "fail" if message.level >= checks.ERROR else "warn"
            yield Finding("settings", message.id or "check", level, message.msg, message.hint or "correct the setting")


def _database() -> Generator[Finding, None, Rows]:
    """Findings one by one, and the rows that the other checks need as its result."""
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    found, rows = doctor_servers.database(os.environ[names.ENV_DATABASE_URL], known)
    yield from found
    if owner := os.environ.get(names.ENV_DATABASE_OWNER_URL):
        yield doctor_servers.owner(owner)
    return rows


def _fleet(state: StateFolder, broker: str, rows: Rows, *, links: bool) -> Iterator[Finding]:
    named = os.environ.get(names.ENV_FLEET_SECRET_FILE)
    try:
        secret = Keyring(Path(named) if named else state.fleet_key)
        with connect_sync(broker, 5.0) as client:
            heard, refused = doctor_fleet.hear(client, secret)
            yield from _ticks(client)
    except BadKey as error:
        yield Finding("secrets", "fleet secret", "fail", str(error), f"name the file in {names.ENV_FLEET_SECRET_FILE}")
        return
    except UNREACHABLE as error:
        yield Finding("facts", "valkey", "fail", f"cannot be read ({describe(error)})", "see the broker's findings")
        return
    yield from refused
    yield from doctor_fleet.facts(heard, rows, [each.subject for each in refused])
    yield from doctor_fleet.engines(heard)
    yield from doctor_machine.reach(doctor_fleet.urls(heard)[:_NO_REACH_MORE_THAN])
    if links:
        yield from doctor_links.measured(heard, rows)
    yield doctor_machine.gpus(expected=doctor_fleet.has_real_gpus(heard, "127.0.0.1"))
    try:
        with psycopg.connect(os.environ[names.ENV_DATABASE_URL], connect_timeout=5) as connection:
            yield from doctor_fleet.links(connection, heard, rows)
            yield from doctor_fleet.disks(connection)
    except psycopg.Error as error:
        remedy = "see the database's findings"
        yield Finding("link", "telemetry", "warn", f"not known: telemetry cannot be read ({first_line(error)})", remedy)


def _ticks(client: redis.Redis) -> Iterator[Finding]:
    """Whether control and ingest do their work."""
    now = float(client.time()[0])
    for process, value in (
        ("control", client.get(names.CONTROL_KEY)),
        ("ingest", client.hget(names.live_key("fleet"), "at")),
    ):
        try:
            age = now - float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            age = None
        if age is not None and age < names.FACT_TTL_S:
            yield Finding("processes", process, "ok", "does its work")
        else:
            said = "has never done anything" if age is None else f"has done nothing for {age:.0f} s"
            yield Finding("processes", process, "fail", said, "start it, and see its log")


def _own_clock(url: str) -> Iterator[Finding]:
    try:
        with connect_sync(url, 5.0) as client:
            before = time.time()
            seconds, micros = client.time()
            middle = (before + time.time()) / 2
    except UNREACHABLE:
        return
    yield checkup.clock("this machine", middle - (seconds + micros / 1e6))


def _uses_nvml(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"nvml" in words


def _text(found: Iterable[Finding]) -> str:
    """What is wrong last, where it is read first."""
    order = {"ok": 0, "warn": 1, "fail": 2}
    shown = sorted(found, key=lambda each: order[each.level])
    lines = []
    for each in shown:
        lines.append(f"{_MARKS[each.level]}  {each.check}: {each.subject}: {each.said}")
        if each.remedy:
            lines.append(f"      -> {each.remedy}")
    counts = [sum(each.level == level for each in shown) for level in ("fail", "warn", "ok")]
    return "\n".join([*lines, "", "{} fail, {} warn, {} ok".format(*counts)])

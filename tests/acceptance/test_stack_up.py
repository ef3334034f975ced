"""`manage.py up` and its companions on an empty fleet: as an operator uses them, with everything real."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import redis

from controlplane.core import names
from controlplane.stack import endpoints
from controlplane.stack.folder import StateFolder
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.services import ROOT

pytestmark = pytest.mark.timeout(240)


class Machine:
    """One state folder and the commands on it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("TWINPOOL_")}
        self.password = ""

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "manage.py", *arguments, "--state", str(self.state)]

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return subprocess.run(
            command, cwd=ROOT, env=self.env | env, capture_output=True, text=True, timeout=150, check=False
        )

    def up(self, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("up", "--fleet", "none", "--port", "0", "--router-port", "0", "--detach", *more, **env)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def pids(self) -> dict[str, int]:
        return {each["name"]: each["pid"] for each in self.status()["processes"]}

    def left(self) -> list[str]:
        """Processes that still belong to this state folder."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            try:
                belongs = str(self.state) in " ".join(process.cmdline()) or self.state.as_posix() in str(process.environ())
            except psutil.Error:
                continue
            if belongs and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                found.append(f"{process.pid} {process.cmdline()}")
        return found


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    state = Path(tempfile.mkdtemp(prefix="twinpool-up-"))
    machine = Machine(state)
    # What a shell may hold for other servers:
    first = machine.up(
        PGSSLMODE="require", PGHOSTADDR="192.0.2.1", PGSERVICE="other", PGOPTIONS="-c default_transaction_read_only=on"
    )
    assert first.returncode == 0, first.stdout + first.stderr
    found = re.search(r"user admin, password (\S+) \(shown only now\)", first.stdout)
    assert found, first.stdout
    machine.password = found[1]
    yield machine
    machine.run("down")
    shutil.rmtree(state, ignore_errors=True)


def until_ready(machine: Machine) -> None:
    deadline = time.monotonic() + 60
    while any(each["state"] != "ready" for each in machine.status()["processes"]):
        assert time.monotonic() < deadline, machine.run("status").stdout
        time.sleep(0.2)


def test_the_console_and_the_router_answer_where_status_says(machine: Machine) -> None:
    status = machine.status()
    for url in (f"{status['console_url']}/healthz", status["router_url"].removesuffix("/v1") + "/livez"):
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.status == 200
    assert {each["name"] for each in status["processes"]} == {
        "up",
        "postgres",
        "valkey",
        "web",
        "router",
        "control",
        "ingest",
    }
    assert status["phase"] == "ready"


def test_the_admins_password_works_and_is_written_nowhere(machine: Machine) -> None:
    shown = machine.run("shell", "-c", _LOGIN.format(password=machine.password))
    assert "logged in admin" in shown.stdout, shown.stderr
    for file in machine.state.rglob("*"):
        if file.is_file():
            assert machine.password.encode() not in file.read_bytes(), file


def test_no_secret_is_in_a_command_line(machine: Machine) -> None:
    stored = json.loads((machine.state / "secrets" / "endpoints.json").read_text())
    secrets = [value for name, value in stored.items() if name.endswith("_password")]
    assert len(secrets) == 4
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in machine.pids().values()]
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    assert (machine.state / "secrets" / "endpoints.json").stat().st_mode & 0o777 == 0o600


def test_a_second_start_on_the_same_state_is_refused(machine: Machine) -> None:
    second = machine.up()
    assert second.returncode == 1
    assert re.fullmatch(r"twinpool: a stack is running on .*: stop it with `manage.py down`, .*\n", second.stderr)


def test_processes_that_are_killed_together_come_back(machine: Machine) -> None:
    before = machine.pids()
    killed = set(before) - {"up", "ingest"}
    for name in killed:
        os.kill(before[name], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(machine.pids()[name] in (before[name], 0) for name in killed):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    until_ready(machine)
    after = machine.pids()
    assert (after["up"], after["ingest"]) == (before["up"], before["ingest"])


def test_a_token_names_the_node_and_makes_it_known(machine: Machine) -> None:
    token = machine.run("join-token", "gpu-1", "--address", "10.0.0.5:6379")
    assert token.returncode == 0, token.stderr
    assert len(token.stdout.splitlines()) == 1
    known = machine.run(
        "shell", "-c", "from controlplane.fleet.models import Node; print(*Node.objects.values_list('name'))"
    )
    assert "('gpu-1',)" in known.stdout
    assert machine.run("join-token", "../x").stderr.startswith("twinpool: '../x' is no node name")


def test_what_is_no_message_on_its_queue_does_not_end_control(machine: Machine) -> None:
    before = machine.pids()["control"]
    with redis.Redis.from_url(endpoints.load(StateFolder(machine.state)).valkey_url) as client:
        for text in ("[]", "x", '{"properties": {"delivery_tag": "t"}, "headers": {"task": "control.tick"}}'):
            client.lpush("control", text)
        deadline = time.monotonic() + 30
        while client.llen("control") or "a malformed message" not in (machine.state / "logs/control.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        until_ready(machine)
    assert machine.pids()["control"] == before
    assert "Unrecoverable" not in (machine.state / "logs/control.log").read_text()


def test_a_forged_forwarding_header_does_not_open_a_locked_name(machine: Machine) -> None:
    with httpx.Client(base_url=machine.status()["console_url"]) as browser:
        answers = []
        for number in range(9):
            page = browser.get("/login")
            browser.headers.update({"X-CSRFToken": browser.cookies["csrftoken"], "X-Forwarded-For": f"10.9.8.{number}"})
            assert page.status_code == 200
            answers.append(browser.post("/login", data={"username": "guessed", "password": "wrong"}).status_code)
    assert answers[-1] == 429


def test_a_killed_supervisor_leaves_a_stack_that_the_next_start_takes_over(machine: Machine) -> None:
    before = machine.pids()
    os.kill(before["up"], signal.SIGKILL)
    status = machine.status()
    assert status["phase"] == "unsupervised"
    with urllib.request.urlopen(f"{status['console_url']}/healthz", timeout=10) as answer:
        assert answer.status == 200
    again = machine.up("--router-processes", "2", "--indexer")
    assert again.returncode == 0, again.stderr
    assert "stopped what the last run left: postgres, valkey, web" in again.stdout
    assert "password as set before" in again.stdout
    after = machine.status()
    assert (after["console_url"], after["router_url"]) == (status["console_url"], status["router_url"])
    assert not set(before.values()) & {each["pid"] for each in after["processes"]}


def test_a_router_of_several_processes_asks_an_indexer(machine: Machine) -> None:
    until_ready(machine)
    pids = machine.pids()
    assert len(psutil.Process(pids["router"]).children()) == 2
    assert "--indexer" in psutil.Process(pids["router"]).cmdline()
    told = psutil.Process(pids["control"]).environ()[names.ENV_KV_EVENTS]
    assert told in psutil.Process(pids["indexer"]).cmdline(), "engines are told another address than the indexer has"


def test_down_leaves_nothing_behind_and_is_no_error_twice(machine: Machine) -> None:
    down = machine.run("down")
    assert (down.returncode, down.stdout) == (0, "twinpool: stopped\n")
    assert machine.left() == []
    again = machine.run("down")
    assert (again.returncode, again.stdout) == (0, f"twinpool: nothing is running on {machine.state}\n")
    assert machine.run("status").returncode == 3


def test_a_start_is_seen_and_stopped_from_its_first_moment(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    starting = subprocess.Popen(
        machine.command("up", "--fleet", "none", "--port", "0", "--router-port", "0"),
        cwd=ROOT, env=machine.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lock = machine.state / "run" / "up.lock"
    deadline = time.monotonic() + 30
    while not lock.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert machine.run("status").stdout.startswith("starting for ")
    down = machine.run("down")
    assert (down.returncode, down.stdout) == (0, "twinpool: stopped\n")
    assert starting.wait(30) is not None
    assert machine.left() == []
    assert machine.run("status").stdout.startswith("nothing is running")


def test_a_detached_start_is_stopped_with_the_command_that_waits_for_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    up = machine.command("up", "--fleet", "none", "--port", "0", "--router-port", "0", "--detach")
    with subprocess.Popen(up, cwd=ROOT, env=machine.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as waiting:
        deadline = time.monotonic() + 30
        while not (machine.state / "run" / "stack.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert machine.run("down").stdout == "twinpool: stopped\n"
        assert waiting.wait(30) != 0
    assert machine.left() == []


def test_all_taken_ports_are_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        console, router = (str(server.getsockname()[1]) for server in (one, other))
        refused = Machine(tmp_path / "state").run("up", "--fleet", "none", "--port", console, "--router-port", router)
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert f"port {console} (console)" in refused.stderr and f"port {router} (router)" in refused.stderr
    assert "like --port " in refused.stderr and "like --router-port " in refused.stderr


def test_a_taken_port_is_told_with_another_one(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = machine.run("up", "--fleet", "none", "--port", str(port))
    assert refused.returncode == 1
    assert re.fullmatch(rf"twinpool: port {port} \(console\) is in use by .*: stop that, .*--port \d+ .*\n", refused.stderr)


def test_an_external_server_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://app:s3cret@127.0.0.1:9/twinpool"
    refused = Machine(tmp_path / "state").up(TWINPOOL_DATABASE_URL=url)
    assert refused.returncode == 1
    assert refused.stderr.startswith("twinpool: the PostgreSQL of TWINPOOL_DATABASE_URL (127.0.0.1:9) does not answer")
    assert "s3cret" not in refused.stderr + refused.stdout


def test_external_servers_are_used_and_left_running(machine: Machine, postgres: EmbeddedPostgres, valkey_url: str) -> None:
    with psycopg.connect(postgres.urls.admin, autocommit=True) as admin:
        admin.execute("CREATE DATABASE elsewhere OWNER owner")
    database, owner = (url.replace("/twinpool", "/elsewhere") for url in (postgres.urls.app, postgres.urls.owner))
    external = {"TWINPOOL_DATABASE_URL": database, "TWINPOOL_DATABASE_OWNER_URL": owner, "TWINPOOL_VALKEY_URL": valkey_url}
    other = Machine(Path(tempfile.mkdtemp(prefix="twinpool-up-")))
    try:
        up = other.up(**external)
        assert up.returncode == 0, up.stdout + up.stderr
        assert set(other.pids()) == {"up", "web", "router", "control", "ingest"}
        shown = other.run("shell", "-c", "from django.db import connection as c; print('in', c.settings_dict['NAME'])")
        assert "in elsewhere" in shown.stdout, shown.stderr
    finally:
        other.run("down")
        shutil.rmtree(other.state)
    assert postgres.is_ready()


def test_ctrl_c_stops_all_in_order_and_what_was_written_is_still_there(machine: Machine) -> None:
    command = machine.command("up", "--fleet", "none", "--port", "0", "--router-port", "0")
    with subprocess.Popen(command, cwd=ROOT, env=machine.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        shown = []
        for line in process.stdout:
            shown.append(line)
            if "router   http" in line:
                break
        assert any(line.startswith("postgres |") for line in shown)
        assert any("gpu-1" in line for line in [machine.run("shell", "-c", _NODES).stdout])
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert rest.endswith("twinpool: stopped\n")
    assert "had to kill" not in rest
    assert machine.left() == []


_LOGIN = """
from django.contrib.auth import authenticate
from django.test import RequestFactory
print("logged in", authenticate(RequestFactory().post("/"), username="admin", password={password!r}))
"""
_NODES = "from controlplane.fleet.models import Node; print(*Node.objects.values_list('name', flat=True))"

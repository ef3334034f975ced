"""Processes that nobody's `up` started: a router that is stopped for an upgrade, a node that joins, TLS to PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from django.core.management import CommandError, call_command
from pydantic import SecretStr

from controlplane.common.jointoken import JoinToken, read_token
from controlplane.core import joining, names
from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRoute, ModelRoute, RoutingTable
from controlplane.fleet.models import JoinToken as JoinTokenRow
from controlplane.settings import _database
from controlplane.stack.services import ROOT
from controlplane.stack.testing import SERVERS
from tests.integration.router_process import router_process
from tests.integration.upkeep_kit import manage
from tests.simulated_engines import KEY, MODEL, running, spec, until


def test_a_router_lets_open_requests_finish_as_long_as_it_was_told(tmp_path: Path) -> None:
    with running(tmp_path, spec("m1", args={"speed": 1.0})) as engine:
        routes = (EngineRoute("m1", engine.url, "mixed", engine_key=KEY),)
        file = tmp_path / "table.json"
        file.write_text(json.dumps(encode(RoutingTable(VERSION, 1, models=(ModelRoute(MODEL, "monolithic", routes),)))))
        with router_process(tmp_path, "", "--table", str(file), "--stop-s", "0.2") as router:
            until(lambda: router.generation() == 1)
            body = {"model": MODEL, "prompt": "a", "max_tokens": 6000, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{router.url}/v1/completions", json=body, timeout=60, trust_env=False) as answer:
                lines = answer.iter_lines()
                next(lines)
                router.process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert router.process.wait(60) == 0
    assert '"error"' in rest[-1] or '"error"' in rest[-2], rest[-2:]


def test_a_router_is_not_told_nonsense() -> None:
    for wrong in ("-1", "1e9", "nan"):
        command = [sys.executable, "-m", "controlplane.router", "--table", "/dev/null", "--stop-s", wrong]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2 and "--stop-s must be 0 to 86400 seconds" in refused.stderr


@pytest.mark.django_db(transaction=True)
def test_a_token_is_made_where_the_environment_alone_names_the_servers(
    valkey_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {name: value for name, value in os.environ.items() if name != names.ENV_STATE}
    env |= {names.ENV_STATE: str(tmp_path), names.ENV_FLEET_SECRET_FILE: str(SERVERS.state.fleet_key)}
    made = manage(env, "join-token", "gpu-1", "--address", "valkey.internal:6379", "--hours", "2")
    assert made.returncode == 0, made.stderr
    token, row = read_token(made.stdout), JoinTokenRow.objects.get()
    assert isinstance(token, JoinToken) and (token.id, token.node) == (row.pk, row.node.name)
    assert token.secret == joining.token_secret(SERVERS.state.fleet_secret(), row.pk, row.salt).hex()
    assert token.valkey_url == "redis://valkey.internal:6379/0"
    call_command("list_join_tokens")
    listed = json.loads(capsys.readouterr().out)
    assert (listed["token"], listed["node"], listed["state"]) == (row.pk, "gpu-1", "valid")
    call_command("revoke_join_token", row.pk)
    with pytest.raises(CommandError, match="revoked already"):
        call_command("revoke_join_token", row.pk)
    refused = manage(env | {names.ENV_FLEET_SECRET_FILE: str(tmp_path / "none")}, "join-token", "gpu-1")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "the fleet secret" in refused.stderr
    refused = manage(env | {names.ENV_DATABASE_URL: "postgresql://x@127.0.0.1:1/x"}, "join-token", "gpu-1")
    assert refused.returncode == 1 and "the database does not answer" in refused.stderr


def test_how_postgresql_is_reached_is_in_its_url() -> None:
    options = _database(SecretStr("postgresql://app:a@db/twinpool?sslmode=verify-full&sslrootcert=/etc/ca.pem"))["OPTIONS"]
    assert options == {"connect_timeout": 5, "sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}

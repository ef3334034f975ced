"""`manage.py doctor` on real servers and a real agent: what is well is ok, what is broken is named with its remedy."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import AgentFact, EngineFact, RouterFact
from controlplane.core.signing import node_key, router_key, seal
from controlplane.core.sketches import Sketch
from controlplane.stack import doctor_fleet, doctor_machine, record
from controlplane.stack.doctor_servers import Rows
from controlplane.stack.folder import StateFolder
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.testing import SERVERS, StartedValkey
from tests.integration.control_kit import real_agent, until
from tests.integration.upkeep_kit import database, manage, owner

SECRET = SERVERS.state.fleet_secret


def asked(env: dict[str, str], state: Path, code: int) -> dict[tuple[str, str], dict[str, Any]]:
    answer = manage(env, "doctor", "--json", "--state", str(state))
    assert answer.returncode == code, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert found["ok"] == (code == 0)
    assert all(each["remedy"] for each in found["findings"] if each["level"] != "ok")
    return {(each["check"], each["subject"]): each for each in found["findings"]}


def tell(valkey: redis.Redis, key: bytes, fact: AgentFact | RouterFact) -> None:
    kind, name = ("agent", fact.node) if isinstance(fact, AgentFact) else ("router", fact.router)
    valkey.set(names.fact_key(kind, name), seal(key, encode(fact)), ex=names.FACT_TTL_S)


def test_a_fleet_is_looked_at_as_a_whole(
    postgres: EmbeddedPostgres, valkey: redis.Redis, valkey_url: str, state_dir: Path
) -> None:
    (state_dir / "agent").mkdir()
    with database(postgres, "upkeep_d") as env:
        empty = asked(env, state_dir, 1)
        assert "manage.py migrate" in empty["migrations", "database"]["remedy"]
        assert manage(env, "migrate", "--database", "owner", "-v0").returncode == 0
        with socket.socket() as nobody, real_agent(valkey_url, state_dir / "agent") as kit:
            nobody.bind(("127.0.0.1", 0))
            owner(
                env,
                f"INSERT INTO fleet_node (name, labels, cordoned, created_at, agent_labels, address, network_gbps, "
                f"agent_boot, agent_booted_at, lost) SELECT n, '{{}}', false, now(), '{{}}', '', 100, '', 0, false "
                f"FROM unnest(ARRAY['{kit.node}', 'late', 'gone', 'forged']) n",
            )
            until("heard", lambda: valkey.exists(names.fact_key("agent", kit.node)))
            now = time.time()
            failed = EngineFact("e1", "m", 0, 1, 1, "failed", "vllm", reason="out of memory")
            away = EngineFact("e2", "m", 0, 1, 1, "ready", "vllm", url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
            late = AgentFact("late", "b", 1, now - 60, "127.0.0.1", engines=(failed, away))
            tell(valkey, node_key(SECRET(), "late"), late)
            tell(valkey, b"x" * 32, replace(late, node="forged"))
            tell(valkey, router_key(SECRET()), RouterFact("r1", "b", 1, now, 0, 7))
            found = asked(env, state_dir, 1)
    levels = {key: each["level"] for key, each in found.items()}
    assert levels["facts", f"agent {kit.node}"] == levels["clock", f"agent {kit.node}"] == "ok"
    assert levels["clock", "agent late"] == "fail" and "chrony" in found["clock", "agent late"]["remedy"]
    assert (
        levels["facts", "agent gone"] == "fail"
        and "not believed" in found["facts", "agent 'forged'".replace("'", "")]["said"]
    )
    assert levels["table", "router r1"] == "warn"
    assert "out of memory" in found["engines", "engine e1"]["said"] and levels["ports", "engine e2"] == "fail"
    assert levels["migrations", "database"] == levels["roles", "application"] == levels["roles", "owner"] == "ok"
    assert levels["version", "valkey"] == levels["version", "postgresql"] == levels["clock", "this machine"] == "ok"
    assert {each["level"] for each in found.values() if each["check"] == "broker"} == {"ok"}
    assert levels["processes", "control"] == "fail" and levels["nvml", "driver"] == "ok"
    assert not [each for each in found.values() if SERVERS.valkey.url.split("@")[0].split(":")[-1] in json.dumps(each)]


def test_servers_that_are_away_are_findings(state_dir: Path, tmp_path: Path) -> None:
    nowhere = {
        names.ENV_DATABASE_URL: "postgresql://app:hush@127.0.0.1:1/none",
        names.ENV_VALKEY_URL: "redis://:hush@127.0.0.1:1/0",
    }
    (state_dir / "secrets" / "fleet.key").chmod(0o644)
    answer = manage({**os.environ, **nowhere}, "doctor", "--state", str(state_dir))
    assert answer.returncode == 1 and answer.stderr == "" and "hush" not in answer.stdout
    for said in ("FAIL  database: postgresql 127.0.0.1:1", "FAIL  broker: valkey 127.0.0.1:1", "chmod -R go= "):
        assert said in answer.stdout, answer.stdout


@pytest.mark.parametrize(
    ("name", "url"),
    [
        (names.ENV_DATABASE_URL, "mysql://app:hush@db/twinpool"),
        (names.ENV_DATABASE_URL, "postgresql://app:hush@db:99999/twinpool"),
        (names.ENV_VALKEY_URL, "https://:hush@valkey:6379"),
        (names.ENV_VALKEY_URL, "redis://:hush@valkey:77777/0"),
    ],
)
def test_an_address_that_can_be_none_is_a_finding(state_dir: Path, name: str, url: str) -> None:
    answer = manage({**os.environ, name: url}, "doctor", "--state", str(state_dir))
    assert answer.returncode == 1 and answer.stderr == "" and "hush" not in answer.stdout
    assert f"FAIL  settings: environment: {name} is wrong" in answer.stdout and "write it like" in answer.stdout


def test_without_a_stack_that_is_the_finding(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key not in (names.ENV_DATABASE_URL, names.ENV_VALKEY_URL)}
    found = asked(env, tmp_path / "none", 1)
    for what in ("database", "postgresql"), ("broker", "valkey"):
        assert found[what]["said"] == "none is known here" and "start the stack" in found[what]["remedy"]


def test_whoever_may_not_read_the_database_blames_no_node(
    postgres: EmbeddedPostgres, valkey: redis.Redis, state_dir: Path
) -> None:
    wrong = postgres.urls.app.replace("//app:", "//app:no")
    tell(valkey, node_key(SECRET(), "n1"), AgentFact("n1", "b", 1, time.time(), "127.0.0.1"))
    tell(valkey, router_key(SECRET()), RouterFact("r1", "b", 1, time.time(), 0, 7))
    found = asked({**os.environ, names.ENV_DATABASE_URL: wrong}, state_dir, 1)
    (refused,) = (each for (check, _), each in found.items() if check == "database")
    assert "password authentication failed" in refused["said"] and "password" in refused["remedy"]
    about_fleet = {key: each["level"] for key, each in found.items() if key[0] in ("facts", "clock", "table")}
    assert set(about_fleet.values()) == {"ok"} and ("facts", "agent n1") in about_fleet
    assert ("table", "router r1") not in about_fleet, "the newest is not known"


def test_an_agent_that_needs_a_driver_is_told_that_there_is_none() -> None:
    """The real library where it finds no driver: on machines that have one it is asked for elsewhere."""
    found = doctor_machine.gpus(expected=True)
    assert found.level == "ok" or ("NVIDIA driver" in found.remedy and found.level == "fail")


def test_a_connector_that_engines_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor_machine.MODULES, "example", "no_such_module")
    monkeypatch.setenv(names.ENV_VLLM_PYTHON, sys.executable)
    (missing,) = doctor_machine.connectors(["example", "none"])
    assert (missing.level, missing.said) == ("fail", "no_such_module cannot be imported")
    monkeypatch.setenv(names.ENV_VLLM_PYTHON, str(tmp_path / "python"))
    (gone,) = doctor_machine.connectors(["example"])
    assert gone.level == "fail" and names.ENV_VLLM_PYTHON in gone.remedy
    assert list(doctor_machine.connectors(["none"])) == []


def test_a_process_that_is_silent_is_told_though_its_port_is_open(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state").create()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        states = {"web": "silent", "ingest": "failed", "router": "ready"}
        running = tuple(record.Running(name, told, 0.0, port=port) for name, told in states.items())
        record.write(state, record.Record(1, "x", 0.0, "ready", "none", "", "", running))
        found = {each.subject: each for each in doctor_machine.ports(state)}
    assert {name: each.level for name, each in found.items()} == {"web": "fail", "ingest": "fail", "router": "ok"}
    assert "gives no answer" in found["web"].said and "web.log" in found["web"].remedy


def test_another_version_of_a_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.lock").write_text("redis==0.1 \\\n    --hash=sha256:00\nno-such-package==1.0\n")
    monkeypatch.setattr(doctor_machine, "ROOT", tmp_path)
    found = doctor_machine.packages()
    assert found.level == "warn" and "no-such-package missing instead of 1.0" in found.said
    assert f"redis {redis.__version__} instead of 0.1" in found.said


@pytest.fixture
def open_valkey(tmp_path: Path) -> Iterator[str]:
    server = StartedValkey(tmp_path / "valkey", _free(), "unused")
    server.prepare()
    conf = tmp_path / "valkey" / "valkey.conf"
    text = conf.read_text().replace("requirepass unused\n", "").replace("noeviction", "allkeys-lru")
    conf.write_text(text)
    url = f"redis://127.0.0.1:{server.port}/0"
    client = redis.Redis.from_url(url)
    server._run(server.command(), lambda: _pings(client), None)
    yield url
    client.close()
    server.stop()
    shutil.rmtree(tmp_path / "valkey")


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_a_broker_that_is_open_or_forgets_is_told(open_valkey: str) -> None:
    from controlplane.stack.doctor_servers import broker

    said = {each.said: each.level for each in broker("valkey", open_valkey)}
    assert said["serves anybody without a password"] == "warn", "only this machine reaches it"
    assert said["forgets what is in it when full (allkeys-lru)"] == "fail"


COUNTERS = [
    *("prompt_tokens", "generation_tokens", "requests", "prefix_queries", "prefix_hits", "local_tokens"),
    *("external_tokens", "transfers_failed", "leases_expired", "preemptions", "running", "running_max", "waiting"),
    *("waiting_max", "samples"),
]


@pytest.mark.django_db(transaction=True)
def test_how_fast_kv_moved_is_held_against_the_declared_link(postgres: EmbeddedPostgres) -> None:
    """40 transfers of 1.25 GB at 1 s each: 10 Gb/s."""
    fact = AgentFact("n1", "b", 1, 0.0, "127.0.0.1", engines=(EngineFact("d1", "m", 0, 1, 1, "ready", "vllm"),))
    heard = {"agent n1": doctor_fleet.Heard(fact, 0.0, 0.0)}
    columns = "engine, incarnation, role, at, model, state, transfer_bytes, transfers, transfer_ms, " + ", ".join(COUNTERS)
    values = "'d1', 1, 'decode', now(), 'm', 'ready', 5e10, 40, %s, " + ", ".join("0" for _ in COUNTERS)
    with psycopg.connect(postgres.urls.owner) as connection:
        sketch = Sketch.of([1000.0] * 40).to_bytes()
        connection.execute(f"INSERT INTO telemetry_engine_10s ({columns}) VALUES ({values})", [sketch])  # type: ignore[arg-type]
        for declared, level in ((10.0, "ok"), (400.0, "warn")):
            (found,) = doctor_fleet.links(connection, heard, Rows(("n1",), (), {"n1": declared}))
            assert found.level == level and found.said.startswith(("9.", "10.")), found
        connection.rollback()


def test_a_node_that_joined_is_asked_about_what_a_node_needs(state_dir: Path, valkey_url: str) -> None:
    node = StateFolder(state_dir / "node").create(for_node=True)
    node.join_file.write_text(json.dumps({"node": "n7", "node_key": "00" * 32, "valkey_url": valkey_url}))
    node.join_file.chmod(0o600)
    found = asked(dict(os.environ), node.path, 1)
    assert found["agent", "n7"]["said"] == "does not run"
    assert found["version", "valkey"]["level"] == found["clock", "this machine"]["level"] == "ok"
    assert not any(check == "database" for check, _ in found)

"""The router and Valkey: signed tables in, facts and telemetry out, and none of it needed to serve."""

from __future__ import annotations

import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis

from controlplane.core import names, signing
from controlplane.core.protocol import EngineRoute, ModelRoute
from controlplane.stack.ports import free_port
from controlplane.stack.testing import StartedValkey
from tests.integration.agent_kit import until
from tests.integration.router_process import SECRET, fact_of, publish, router_process, rows_of, table

TEXT = {"model": "m", "prompt": "hi", "max_tokens": 2}
ANSWER = b'{"choices":[{"text":" ok"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}'


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    keys: list[str] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        _Engine.keys.append(self.headers["authorization"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[ModelRoute]:
    """One mixed engine on node n1, really there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    _Engine.keys.clear()
    engine = EngineRoute("e1", f"http://127.0.0.1:{server.server_port}", "mixed", incarnation=3, node="n1")
    yield ModelRoute("m", "monolithic", (engine,))
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[StartedValkey]:
    """One that a test may stop and start."""
    server = StartedValkey(tmp_path / "valkey", free_port(), secrets.token_urlsafe(12))
    with (tmp_path / "valkey.log").open("ab") as log:
        server.start(log)
        yield server
        server.stop()


def test_a_published_table_is_used_at_once_and_acknowledged(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path, model: ModelRoute
) -> None:
    cache = tmp_path / "cache" / "table.json"
    with router_process(tmp_path, valkey_url, "--valkey", "--cache", str(cache)) as router:
        assert router.post(TEXT).status_code == 503
        publish(valkey, table(7, model, epoch=2))
        until("acknowledged", lambda: (fact := fact_of(valkey, router)) and (fact.epoch, fact.generation) == (2, 7))
        assert router.post(TEXT).status_code == 200
        expected = signing.engine_key(signing.node_key(SECRET, "n1"), "e1", 3)
        assert _Engine.keys == [f"Bearer {expected}"]
        assert stat.S_IMODE(cache.stat().st_mode) == 0o600
        fact = fact_of(valkey, router)
        assert fact
        assert [(load.engine, load.incarnation, load.in_flight) for load in fact.loads] == [("e1", 3, 0)]
        assert router.stop() == 0
        assert fact_of(valkey, router) is None
        for private in (valkey_url.split("@")[0], expected):
            assert private not in router.log()


def test_tables_that_must_not_be_used_change_nothing_and_are_logged_once(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path, model: ModelRoute
) -> None:
    with router_process(tmp_path, valkey_url, "--valkey") as router:
        publish(valkey, table(5, model, epoch=1))
        until("applied", lambda: router.generation() == 5)
        bad = {
            "signature": lambda: publish(valkey, table(6), key=b"x" * 32),
            "older": lambda: publish(valkey, table(9, epoch=0)),
            "models": lambda: publish(valkey, {**table(6), "models": 7}),
            "version": lambda: publish(valkey, {**table(6), "version": 9}),
            "envelope": lambda: valkey.set(names.TABLE_KEY, "nonsense"),
        }
        for word, offer in bad.items():
            offer()
            until(f"refused for its {word}", lambda word=word: f"{word}" in router.log().split("refused")[-1])
        # Offered again by the poll every 2 s, and still only told once.
        until("polled again", lambda: valkey.info("commandstats")["cmdstat_get"]["calls"] > 12)
        assert router.log().count("routing table refused") == len(bad)
        assert router.generation() == 5
        assert router.post(TEXT).status_code == 200
        publish(valkey, table(6, model, epoch=1))
        until("applied", lambda: router.generation() == 6)


def test_each_request_and_the_router_itself_are_told(
    valkey: redis.Redis, valkey_url: str, tmp_path: Path, model: ModelRoute
) -> None:
    with router_process(tmp_path, valkey_url, "--valkey") as router:
        publish(valkey, table(1, model))
        until("applied", lambda: router.generation() == 1)
        router.post(TEXT)
        router.post({"model": "nope"})
        rows = until("told", lambda: rows_of(valkey, "request"))
        (row,) = rows
        assert (row["model"], row["path"], row["reason"], row["status"], row["outcome"]) == (
            "m", "monolithic", "monolithic", 200, "ok",
        )  # fmt: skip
        assert (row["prompt_tokens"], row["output_tokens"], row["decode_engine"]) == (5, 2, "e1")
        assert 0 < row["ttft_ms"] <= row["total_ms"]
        assert row["prefill_ms"] is row["handoff_ms"] is None
        until("counted", lambda: rows_of(valkey, "router")[-1]["requests"] == 2)


def test_the_router_serves_while_valkey_is_away_and_starts_from_its_disk_copy(
    own_valkey: StartedValkey, tmp_path: Path, model: ModelRoute
) -> None:
    cache = tmp_path / "table.json"
    options = ("--valkey", "--cache", str(cache))
    client = redis.Redis.from_url(own_valkey.url)
    with router_process(tmp_path, own_valkey.url, *options) as router:
        publish(client, table(3, model))
        until("applied", lambda: router.generation() == 3)
        own_valkey.stop()
        for _ in range(3):
            assert router.post(TEXT).status_code == 200
        until("noticed", lambda: "Valkey is away" in router.log())
        with router_process(tmp_path, own_valkey.url, *options) as second:
            until("applied", lambda: second.generation() == 3)
            assert second.post(TEXT).status_code == 200
            assert second.stop() == 0
        with (tmp_path / "valkey.log").open("ab") as log:
            own_valkey.start(log)
        until("told again", lambda: fact_of(client, router))
        until("sent later", lambda: len(rows_of(client, "request")) == 3)
        client.close()


def test_a_disk_copy_that_was_changed_is_not_used(tmp_path: Path, model: ModelRoute) -> None:
    cache = tmp_path / "table.json"
    cache.write_text(signing.seal(b"y" * 32, table(3, model)))
    with router_process(tmp_path, f"redis://127.0.0.1:{free_port()}/0", "--valkey", "--cache", str(cache)) as router:
        until("refused", lambda: "disk copy: signature does not match" in router.log())
        assert router.generation() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "TWINPOOL_VALKEY_URL"),
        (("--valkey", "http://x"), "redis://"),
        (("--table", "t", "--body-limit", "0"), "--body-limit"),
        (("--valkey", "redis://127.0.0.1:1"), "fleet secret"),
        (("--table", "t", "--host", "203.0.113.7"), "--host"),
    ],
    ids=str,
)
def test_a_bad_start_is_one_clear_line(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), names.ENV_STATE: str(tmp_path), names.ENV_ROUTER_BUILDS: "none"}
    command = [sys.executable, "-m", "controlplane.router", *options]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_password_in_the_command_line_is_warned_of_and_not_repeated(tmp_path: Path) -> None:
    with router_process(tmp_path, "", "--valkey", f"redis://:hunter2@127.0.0.1:{free_port()}/0") as router:
        assert (
            f"the password in --valkey is seen by every user of this machine: give it in {names.ENV_VALKEY_URL}"
            in router.log()
        )
        assert "hunter2" not in router.log()

"""What the stack decides, without starting anything."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path

import pytest

from controlplane.common.jointoken import BadToken, Joined, JoinToken, join_url, read_token
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.stack import endpoints, health, join, options, ports, run, targets
from controlplane.stack.commands import _take_state
from controlplane.stack.endpoints import External
from controlplane.stack.errors import StackError, explained
from controlplane.stack.folder import StateFolder
from controlplane.stack.install_errors import explain
from controlplane.stack.join import _joined
from controlplane.stack.output import LogFile, last_error
from controlplane.stack.ports import free_port
from controlplane.stack.services import PATIENCE_S, SOURCES, STOP_S, Service
from controlplane.stack.supervisor import pause_s


def test_pauses_between_starts_grow_and_are_bounded() -> None:
    assert [pause_s(n) for n in range(8)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert pause_s(10_000) == 15.0


def test_a_stop_fits_into_fifteen_seconds() -> None:
    assert sum(PATIENCE_S.values()) <= STOP_S < 14


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "free some space"),
        ("NewConnectionError(...): Failed to establish: Temporary failure in name resolution", "check network and proxy"),
        ("error: Failed to fetch: error sending request for url\n  Caused by: client error (Connect)", "check network"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "does not match requirements.lock"),
        ("[Errno 13] Permission denied: '/x/.venv'", "make it writable"),
        ("Error: Command '[...ensurepip...]' returned non-zero exit status 1.", "python3-venv"),
        ("ERROR: something else entirely", "something else entirely"),
    ],
)
def test_a_failed_installation_is_one_line_with_a_remedy(output: str, remedy: str) -> None:
    line = explain("Collecting x\n" + output, "/x")
    assert remedy in line
    assert "\n" not in line


def test_a_named_port_that_is_taken_is_refused_with_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} \(console\) is in use by .*--port \d+"):
            options.settle_port(port, 0, 8080, "127.0.0.1", "console", "--port")


def test_any_port_is_found_when_the_last_one_is_taken_and_kept_when_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        other = options.settle_port(0, taken, 8080, "127.0.0.1", "console", "--port")
    assert other != taken
    assert options.settle_port(0, other, 8080, "127.0.0.1", "console", "--port") == other


def test_each_page_for_prometheus_has_a_port_of_its_own_and_keeps_it() -> None:
    kept = free_port()
    found = ports.free_ports({"control": kept, "ingest": kept}, ["control", "ingest", "agent-n1"])
    assert found["control"] == kept
    assert len(set(found.values())) == 3
    assert ports.free_ports(found, found) == found


def test_prometheus_is_told_the_pages_of_processes_that_have_one(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    state = StateFolder(tmp_path / "s")
    pages = {"web": "http://10.0.0.1:8080/metrics", "agent-n1": "http://[::1]:9000/metrics", "postgres": ""}
    targets.write(state, [Service(name, (), {}, health.alive(1), SOURCES, metrics=page) for name, page in pages.items()])
    assert json.loads(targets.file_of(state).read_text()) == [
        {"targets": ["10.0.0.1:8080"], "labels": {"process": "web"}},
        {"targets": ["[::1]:9000"], "labels": {"process": "agent", "node": "n1"}},
    ]
    assert targets.file_of(state).stat().st_mode & 0o777 == 0o644


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StackError, match=r"192\.0\.2\.7 is not an address of this machine"):
        options.parse(["--host", "192.0.2.7"], Path("/"))
    with pytest.raises(StackError, match="no IP address"):
        options.parse(["--host", "my host"], Path("/"))


@pytest.mark.parametrize("processes", ["0", "65", "-1", "two"])
def test_a_router_is_1_to_64_processes(processes: str) -> None:
    with pytest.raises(SystemExit):
        options.parse(["--router-processes", processes], Path("/"))
    assert options.parse(["--router-processes", "64"], Path("/")).router_processes == 64


def test_traffic_is_on_for_the_fleets_that_say_so_unless_asked() -> None:
    assert options.parse([], Path("/")).traffic
    assert options.parse(["--fleet", "field"], Path("/")).traffic
    assert not options.parse(["--traffic", "off"], Path("/")).traffic
    assert not options.parse(["--fleet", "vllm"], Path("/")).traffic


def test_external_servers_come_from_the_environment() -> None:
    url = "postgresql://app:s3cret@db:5432/twinpool"
    found = endpoints.external({names.ENV_DATABASE_URL: url})
    assert found == External(database_url=url, owner_url=url)
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "environ",
    [
        {names.ENV_DATABASE_URL: "mysql://x/y"},
        {names.ENV_DATABASE_URL: "postgresql://app@db:port/x"},
        {names.ENV_DATABASE_OWNER_URL: "postgresql://owner@db/x"},
        {names.ENV_VALKEY_URL: "127.0.0.1:6379"},
        {names.ENV_VALKEY_URL: "redis://[::1/0"},
    ],
)
def test_a_url_that_cannot_be_one_is_refused_without_showing_it(environ: dict[str, str]) -> None:
    with pytest.raises(StackError) as refused:
        endpoints.external(environ)
    assert all(url not in str(refused.value) for url in environ.values())


def test_a_join_token_is_read_back_and_hides_its_secrets() -> None:
    token = JoinToken(1, "gpu-1", "ab" * 32, "redis://10.0.0.5:6379/0")
    assert read_token(token.text() + "\n") == token
    assert "abab" not in repr(token)


def test_a_token_of_an_earlier_version_is_what_it_says() -> None:
    kept = Joined("gpu-1", "ab" * 32, "redis://:pw@10.0.0.5:6379/0")
    text = base64.urlsafe_b64encode(json.dumps(encode(kept)).encode()).decode()
    assert read_token(text) == kept
    assert not {"pw", "abab"} & set(repr(kept).split("'"))


TOKEN = JoinToken(1, "n", "ab" * 32, "redis://h:1/0")


@pytest.mark.parametrize("text", ["", "x", "e30=", "W10=", "AAAA", TOKEN.text()[:40], "é"])
def test_what_is_no_join_token_is_refused(text: str) -> None:
    with pytest.raises(BadToken, match="no join token"):
        read_token(text)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "..", "a b", "a" * 64, "a\n"])
def test_a_name_that_could_leave_its_folder_is_no_node(name: str) -> None:
    with pytest.raises(ValueError, match="no node name"):
        names.check_node_name(name)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("", "redis://127.0.0.1:6379/0"),
        ("10.0.0.1", "redis://10.0.0.1:6379/0"),
        ("valkey.example:7000", "redis://valkey.example:7000/0"),
        ("fd00::1", "redis://[fd00::1]:6379/0"),
        ("[fd00::1]:7000", "redis://[fd00::1]:7000/0"),
    ],
)
def test_a_token_has_the_address_that_the_node_reaches_and_no_password(address: str, url: str) -> None:
    assert join_url("redis://:p%40w@127.0.0.1:6379/0", address) == url


@pytest.mark.parametrize("address", ["redis://x", "me@host", "host:port", "host:0", "a b", "host/1", ":7", "[::1", "h?x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadToken, match="is none: write HOST"):
        join_url("redis://:pw@127.0.0.1:6379/0", address)


@pytest.mark.parametrize("kept", ["", "{}", "[", '{"node": "a/b"}', '{"node": "a", "node_key": "zz", "valkey_url": "u"}'])
def test_a_damaged_token_in_the_state_folder_is_told_with_its_remedy(
    tmp_path: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(names.ENV_JOIN_TOKEN, raising=False)
    state = StateFolder(tmp_path / "state").create(for_node=True)
    (state.secrets / "join.json").write_text(kept)
    monkeypatch.setattr("sys.stdin", (tmp_path / "stdin").open("w+"))
    with pytest.raises(StackError, match=r"join\.json is damaged: remove it and join with a new token"):
        _joined(state)


def test_a_join_token_given_now_wins_over_the_stored_one_which_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(state: StateFolder, token: JoinToken) -> Joined:
        joined = Joined(token.node, "cd" * 32, token.valkey_url, token=token.digest())
        state.join_file.write_text(json.dumps(encode(joined)))
        return joined

    monkeypatch.setattr(join, "ask_to_join", ask)
    old, new = (JoinToken(n, name, f"{n}b" * 32, "redis://10.0.0.5:6379/0") for n, name in ((1, "old"), (2, "new")))
    state = StateFolder(tmp_path / "state").create(for_node=True)
    monkeypatch.delenv(names.ENV_JOIN_TOKEN, raising=False)
    for given in (old.text(), "", new.text() + "\n", ""):
        (tmp_path / "stdin").write_text(given)
        monkeypatch.setattr("sys.stdin", (tmp_path / "stdin").open())
        _joined(state)
    for given in (old.text(), old.text()):
        monkeypatch.setenv(names.ENV_JOIN_TOKEN, given)
        _joined(state)
    assert [line.removeprefix("twinpool: ") for line in capsys.readouterr().err.splitlines()] == [
        "joining as node old with the token of standard input",
        f"node old, which joined before ({state.join_file})",
        "joining as node new with the token of standard input",
        f"node new, which joined before ({state.join_file})",
        f"joining as node old with the token of {names.ENV_JOIN_TOKEN}",
        f"node old, which has joined with the token of {names.ENV_JOIN_TOKEN}",
    ]


@pytest.mark.parametrize("text", ["x", "=y", "-a=b", "a=" + "b" * 201, "a=\x00", "ä=b"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write KEY=VALUE"):
        names.read_label(text)


def test_a_label_may_have_an_empty_value_and_equal_signs() -> None:
    assert names.read_label("zone=a=b") == ("zone", "a=b")
    assert names.read_label("spot=") == ("spot", "")


def test_the_state_option_is_taken_off_a_django_command() -> None:
    assert _take_state(["manage.py", "shell", "--state", "/s", "-c", "x"]) == ("/s", ["manage.py", "shell", "-c", "x"])
    assert _take_state(["manage.py", "shell", "--state=/s"]) == ("/s", ["manage.py", "shell"])


async def test_a_wait_for_a_silent_process_ends_and_tells_the_last_error_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_PROCESSES_S", 0.0)
    stack = object.__new__(run.Stack)
    stack._state, stack._say = StateFolder(tmp_path / "state").create(), print  # type: ignore[method-assign]
    (stack._state.logs / "postgres.log").write_text("FATAL: no way in\nmore\n")
    with pytest.raises(StackError, match=r"postgres does not answer after 0 s: FATAL: no way in; see .*postgres\.log"):
        await stack._answering(lambda: ["postgres"])


def test_a_log_is_followed_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "web.log"
    file.write_text("old\n")
    log = LogFile(file)
    with file.open("a") as writer:
        writer.write("one\ntw")
        writer.flush()
        assert log.new_lines() == ["one"]
        writer.write("o\n")
        writer.flush()
        assert log.new_lines() == ["two"]


def test_a_large_log_is_rotated_under_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.stack.output._ROTATE_BYTES", 10)
    file = tmp_path / "web.log"
    log = LogFile(file)
    with file.open("a") as writer:
        for turn in range(6):
            writer.write(f"a long line {turn}\n")
            writer.flush()
            assert log.new_lines() == [f"a long line {turn}"]
            log.rotate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2", "web.log.3"]
    assert (tmp_path / "web.log.1").read_text() == "a long line 5\n"


def test_the_last_error_of_a_log_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("ImportError: no module\nby the way\n")
    assert last_error(tmp_path / "x.log") == "ImportError: no module"
    assert last_error(tmp_path / "none.log") == "it wrote nothing"


def test_a_folder_with_other_things_is_no_state_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.odt").touch()
    before = tmp_path.stat().st_mode
    with pytest.raises(StackError, match="holds other things"):
        StateFolder(tmp_path).create()
    assert tmp_path.stat().st_mode == before


def test_a_state_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="cannot use the state folder"):
        StateFolder(tmp_path / "file" / "state").create()


def test_a_full_disk_is_explained_and_a_fault_is_not() -> None:
    with pytest.raises(StackError, match=r"no space left on device \(/x\): free some space"), explained():
        raise OSError(28, "No space left on device", "/x")
    with pytest.raises(FileNotFoundError), explained():
        raise FileNotFoundError(2, "No such file", "/x")


def test_a_state_folder_keeps_its_secrets_private(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "s").create()
    key = folder.fleet_key.read_bytes()
    assert (len(key), folder.fleet_key.stat().st_mode & 0o777) == (32, 0o600)
    assert StateFolder(tmp_path / "s").create().fleet_key.read_bytes() == key
    assert folder.node_key("n1").stat().st_mode & 0o777 == 0o600

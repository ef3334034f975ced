"""Commands as typed where no stack answers, or with words and surroundings that cannot work: one line, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from controlplane.common.jointoken import Joined
from controlplane.common.valkey import away
from controlplane.core.codec import encode
from controlplane.stack import endpoints
from controlplane.stack.commands import _django
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.ports import free_port
from controlplane.stack.postgres import EmbeddedPostgres
from controlplane.stack.testing import StartedValkey
from tests.integration.agent_kit import until

ROOT = Path(__file__).parents[2]


def typed(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TWINPOOL_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=plain | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def refusal(*words: str, **env: str) -> str:
    """The one line with which a command is refused."""
    answer = typed(*words, **env)
    assert answer.returncode == 1, answer
    assert answer.stderr.startswith("twinpool: ") and answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr.strip()


@pytest.mark.parametrize("words", ["scale_pool m mixed 1", "engine_log e", "changepassword admin", "showmigrations"])
def test_a_command_without_a_stack_says_how_to_get_one(tmp_path: Path, words: str) -> None:
    told = f"twinpool: no stack answers on {tmp_path}: start it with `manage.py up`, or name it with --state"
    assert refusal(*words.split(), "--state", str(tmp_path)) == told


def test_a_command_on_another_users_state_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> dict[str, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(endpoints, "stored_environment", refuse)
    monkeypatch.delenv("TWINPOOL_DATABASE_URL")
    with pytest.raises(StackError, match=r"belongs to another user: .* --state"):
        _django(["manage.py", "showmigrations", "--state", str(tmp_path)])


def test_a_command_uses_the_servers_that_the_environment_names(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    assert typed("showmigrations", "--state", str(tmp_path), TWINPOOL_DATABASE_URL=postgres.urls.app).returncode == 0
    away = refusal("showmigrations", TWINPOOL_DATABASE_URL="postgresql://app:s3cret@127.0.0.1:9/x")
    assert "TWINPOOL_DATABASE_URL" in away and "s3cret" not in away


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("down --state /etc/passwd", "name a folder with --state"),
        (f"status --state /tmp/{'x' * 300}", "choose a shorter one"),
        ("showmigrations --state", "write --state DIR"),
    ],
)
def test_a_state_that_cannot_be_is_refused(words: str, remedy: str) -> None:
    assert remedy in refusal(*words.split())


@pytest.mark.parametrize("words", ["up --fleet none", "check"])
def test_a_wrong_setting_is_named_with_its_remedy(tmp_path: Path, words: str) -> None:
    line = refusal(*words.split(), "--state", str(tmp_path / "s"), TWINPOOL_KEEP_REQUEST_DAYS="soon")
    assert "TWINPOOL_KEEP_REQUEST_DAYS is wrong" in line and "correct or unset it" in line


@pytest.mark.parametrize("words", ["test --vllm", "up --fleet vllm"])
def test_an_interpreter_without_vllm_is_refused_before_anything_is_done(tmp_path: Path, words: str) -> None:
    line = refusal(*words.split(), TWINPOOL_STATE=str(tmp_path / "s"), TWINPOOL_VLLM_PYTHON="/bin/false")
    assert "/bin/false (TWINPOOL_VLLM_PYTHON) has no vllm" in line


def test_a_question_nobody_answers_is_no_traceback(tmp_path: Path, postgres: EmbeddedPostgres, db: None) -> None:
    with pytest.raises(StackError, match="run it in a terminal"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.core.management.execute_from_command_line", lambda _: input())
        patch.setattr("sys.stdin", (tmp_path / "nothing").open("w+"))
        _django(["manage.py", "changepassword", "admin"])


def test_help_and_version_are_twinpools_own() -> None:
    assert typed("--version").stdout == "twinpool 0.1.0\n"
    assert typed("help", "up").stdout.startswith("usage: manage.py up")


def test_a_reader_that_had_enough_ends_no_command_with_a_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        ended = subprocess.run([sys.executable, "manage.py"], cwd=ROOT, stdout=nobody, stderr=subprocess.PIPE, text=True)
    assert ended.stderr == ""


def test_a_joined_node_is_shown_and_stopped_and_holds_no_control_plane(tmp_path: Path, valkey_url: str) -> None:
    state = tmp_path / "state"
    folder = StateFolder(state).create(for_node=True)
    folder.join_file.write_text(json.dumps(encode(Joined("joined", "ab" * 32, valkey_url))))
    words = ("agent", "--accelerators", "cpu:1", "--address", "127.0.0.1", "--state", str(state))
    command = [sys.executable, "manage.py", *words]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=log) as agent,
    ):
        try:
            with redis.Redis.from_url(valkey_url) as client:
                until("joined", lambda: client.get("fact:agent:joined"))
            shown = typed("status", "--state", str(state))
            told = f"node joined: agent pid {agent.pid}, 0 engine processes, state {state}\n"
            assert (shown.returncode, shown.stdout) == (0, told)
            assert "is the folder of a node that joined a fleet" in refusal("up", "--state", str(state))
            assert typed("down", "--state", str(state)).stdout == "twinpool: stopped the agent of joined and its engines\n"
            assert agent.wait(60) == 0
        finally:
            agent.kill()
    assert typed("status", "--state", str(state)).returncode == 3


def test_valkey_runs_in_a_folder_of_any_name_that_can_be_printed(tmp_path: Path) -> None:
    folder = tmp_path / """a "quoted" \\ 'folder' """
    folder.mkdir()
    server = StartedValkey(folder / "valkey", free_port(), "password")
    server.start()
    try:
        assert (folder / "valkey" / "appendonlydir").is_dir()
        with pytest.raises(redis.AuthenticationError) as refused, redis.Redis(port=server.port, password="other") as client:
            client.ping()
        assert "make a new token" in away(refused.value)
    finally:
        server.stop()
    with pytest.raises(StackError, match="choose another --state"):
        StateFolder(tmp_path / "new\nline").create()

"""Files, locks and processes as every part of the system uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.common.files import BadKey, read_key, rotate, write_private
from controlplane.common.locks import Held, held
from controlplane.common.processes import how_ended, identity, in_exec, variable
from controlplane.common.valkey import usable
from controlplane.core import names
from controlplane.core.protocol import EngineRoute
from workers.engines.base import Place


def test_a_private_file_is_replaced_whole_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"old and longer")
    file.chmod(0o644)
    write_private(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_a_private_file_that_cannot_be_written_leaves_the_old_one_and_no_litter(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(file, b"new")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (b"k" * 31, 0o600, "has 31 bytes instead of 32"),
        (b"k" * 33, 0o600, "has more bytes instead of 32"),
        (b"k" * 32, 0o640, "open to other users: chmod 600"),
        (b"k" * 32, 0o604, "open to other users: chmod 600"),
        (None, 0o600, "cannot read the key .*No such file"),
    ],
)
def test_a_key_file_of_a_wrong_size_or_mode_is_refused(
    tmp_path: Path, content: bytes | None, mode: int, problem: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(BadKey, match=problem) as caught:
        read_key(file, "the key")
    assert "kkk" not in str(caught.value)


def test_a_good_key_file_is_read(tmp_path: Path) -> None:
    write_private(tmp_path / "key", bytes(range(32)))
    assert read_key(tmp_path / "key", "the key") == bytes(range(32))


def test_a_log_that_grew_too_long_is_rotated_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "e.log"
    with log.open("ab", buffering=0) as writer:
        for number in range(4):
            writer.write(b"%d" % number * 300)
            assert rotate(log, 200, keep=2)
        writer.write(b"new")
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert kept == {"e.log": b"new", "e.log.1": b"3" * 300, "e.log.2": b"2" * 300}


def test_a_rotated_log_never_keeps_more_than_twice_the_limit(tmp_path: Path) -> None:
    log = tmp_path / "e.log"
    log.write_bytes(b"x" * 10_000 + b"end")
    assert rotate(log, 100)
    assert (tmp_path / "e.log.1").read_bytes() == b"x" * 197 + b"end"


def test_a_short_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "e.log").write_text("short")
    assert not rotate(tmp_path / "e.log", 200)
    assert not rotate(tmp_path / "none.log", 200)


def test_a_lock_has_one_holder_and_whoever_waits_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    lock = tmp_path / "lock"
    with held(lock), pytest.raises(Held), held(lock, wait_s=0.3, waits=lambda: told.append("waits")):
        pass
    assert told == ["waits"]
    with held(tmp_path / "lock", create=False):
        pass


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from controlplane.common.locks import held\n"
    code += "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        with held(tmp_path / "lock", wait_s=10):
            pass


def test_a_missing_file_is_not_made_for_a_lock_that_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), held(tmp_path / "lock", create=False):
        pass
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
        (None, "ended, exit status unknown"),
    ],
)
def test_an_end_is_told_in_words(code: int | None, words: str) -> None:
    assert how_ended(code) == words


def test_a_process_is_known_by_its_start_and_its_environment() -> None:
    code, pipe = "print('runs', flush=True); input()", subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env={"A": "x", "AB": "y=z"}) as process:
        assert process.stdout
        assert process.stdout.readline() == b"runs\n"
        assert identity(process.pid) == identity(process.pid) != identity(os.getpid())
        assert (variable(process.pid, "AB"), variable(process.pid, "B")) == ("y=z", "")
        process.communicate(b"\n")
    assert (identity(process.pid), variable(process.pid, "AB")) == ("", "")


def test_the_environment_of_a_process_is_seen_as_soon_as_it_is_started() -> None:
    for number in range(200):  # the exec of some is still going on when Popen returns
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PATH": os.environ["PATH"], "N": str(number)}) as process:
            assert variable(process.pid, "N") == str(number)


@pytest.mark.parametrize(
    ("state", "flags", "environment_end", "expected"),
    [
        ("R", 0x400000, 0, True),
        ("R", 0x400000, 140_000_000, False),  # `env -i`: none was given
        ("Z", 0x40000C, 0, False),
        ("R", 0x400004, 0, False),
        ("I", 0x208040, 0, False),
    ],
    ids=["in an exec", "without environment", "zombie", "ending", "kernel thread"],
)
def test_a_process_in_the_middle_of_an_exec_is_told_from_one_without_environment(
    state: str, flags: int, environment_end: int, expected: bool
) -> None:
    fields = [state, *"12345", str(flags), *["1"] * 41, str(environment_end), "0"]
    assert in_exec(f"7 (a) b) {' '.join(fields)}\n") is expected
    assert not in_exec(Path("/proc/self/stat").read_text())


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("redis://:p@h:6379/0", True),
        ("rediss://h", True),
        ("", False),
        ("h:6379", False),
        ("http://h", False),
        ("redis://h:port", False),
        ("redis://[::1/0", False),
    ],
)
def test_only_what_a_valkey_can_have_is_a_url(url: str, good: bool) -> None:
    assert usable(url) == good


def test_no_repr_shows_the_key_of_an_engine(tmp_path: Path) -> None:
    place = Place("h", 1, 2, tmp_path, tmp_path, 1, engine_key="s3cret")
    assert "s3cret" not in repr(place) + repr(EngineRoute("e", "http://h:1", "mixed", engine_key="s3cret"))


def test_no_key_has_the_name_of_a_queue() -> None:
    keys = {names.CONTROL_KEY, names.TABLE_KEY, names.TELEMETRY_STREAM}
    assert names.CONTROL_QUEUE not in keys

"""`manage.py fleet-secret`: the fleet secret goes to another machine by a pipe, to no terminal, and never backwards."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.common.keyring import Ring, read_ring, ring_path, ring_text, write_ring
from controlplane.stack import fleetsecret
from controlplane.stack.errors import StackError
from controlplane.stack.services import ROOT

ONE, TWO, THREE = bytes(32), bytes(range(32)), bytes(range(1, 33))


def carried(step: str, path: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "fleet-secret", step, "--file", str(path)]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=120)


def test_what_is_exported_is_there_as_the_owner_of_the_folder_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, there = tmp_path / "here" / "fleet.key", tmp_path / "there" / "fleet.key"
    if os.geteuid() == 0:
        os.chown(there.parent, 65534, 65534)
    write_ring(here, Ring(0, {0: ONE, 1: TWO}))
    out = carried("export", here)
    assert out.returncode == 0 and out.stderr == ""
    taken = carried("import", there, out.stdout)
    assert taken.returncode == 0 and "secret 0 signs, 0, 1 are believed" in taken.stderr and taken.stdout == ""
    assert read_ring(there) == read_ring(here) and there.read_bytes() == ONE
    for file in (there, ring_path(there)):
        assert file.stat().st_mode & 0o777 == 0o600 and file.stat().st_uid == there.parent.stat().st_uid
    assert TWO.hex() not in taken.stderr + taken.stdout


HERE = Ring(1, {0: ONE, 1: TWO})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ring_text(Ring(0, {0: ONE, 1: TWO})), "older"),
        (ring_text(Ring(1, {1: THREE})), "another fleet"),
        (ring_text(Ring(2, {2: THREE})), "too far on"),
        ("", "damaged"),
        ("[" * 4000, "damaged"),
        ('{"present": 5, "keys": {}}', "damaged"),
        ('{"present": 0, "keys": {"0": "' + "é" * 64 + '"}}', "damaged"),
    ],
)
def test_what_may_not_take_the_place_of_what_is_there_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    file = tmp_path / "fleet.key"
    write_ring(file, HERE)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(StackError, match=said) as refused:
        fleetsecret.run(["import", "--file", str(file)], ROOT)
    assert "\n" not in str(refused.value) and read_ring(file) == HERE


def test_the_next_step_of_a_rotation_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.key"
    write_ring(file, HERE)
    for coming in (HERE, Ring(1, {1: TWO}), Ring(1, {1: TWO, 2: THREE}), Ring(2, {1: TWO, 2: THREE})):
        monkeypatch.setattr("sys.stdin", io.StringIO(ring_text(coming)))
        assert fleetsecret.run(["import", "--file", str(file)], ROOT) == 0
        assert read_ring(file) == coming


def test_a_secret_is_shown_on_no_terminal(tmp_path: Path) -> None:
    file = tmp_path / "fleet.key"
    write_ring(file, HERE)
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "manage.py", "fleet-secret", "export", "--file", str(file)]
        shown = subprocess.run(command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(theirs)
        os.close(ours)
    assert shown.returncode == 1 and "not to a terminal" in shown.stderr
    assert "cannot read the fleet secret" in carried("export", tmp_path / "none").stderr

"""The commands about physics refuse in one line, as somebody at a terminal meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import load_command_class

COMMANDS = ("kvsize", "phase", "forecast", "calibrate", "experiment", "fit")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_not_known_is_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = load_command_class("controlplane.physics", name)
    with pytest.raises(SystemExit) as ended:
        command.run_from_argv(["/somewhere/manage.py", name, "--no-such-option\x1b[31m"])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (1, "")
    assert said.err.startswith("CommandError: ")
    assert said.err.endswith(f"; `manage.py {name} --help` lists the options\n")
    assert said.err.count("\n") == 1 and "\x1b" not in said.err


def test_what_a_command_needs_is_named() -> None:
    done = subprocess.run([sys.executable, ROOT / "manage.py", "phase", "--gpu", "b200"], capture_output=True, text=True)
    said = "CommandError: the following arguments are required: --config; `manage.py phase --help` lists the options\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)

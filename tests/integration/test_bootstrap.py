"""The environment of a checkout, made with the real venv and pip (of no packages, so that no network is needed)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.stack import bootstrap

ROOT = Path(bootstrap.__file__).resolve().parents[2]
_SHOW = "import sys\ndef dispatch(argv):\n    print('ran in', sys.prefix, argv[1:])\n    return 5\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone's program with an empty lock file and a command that shows where it runs."""
    clone = tmp_path / "clone"
    for package in ("stack", "common", "core"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "controlplane" / package, clone / "controlplane" / package, ignore=ignored)
    shutil.copy(ROOT / "controlplane" / "__init__.py", clone / "controlplane")
    shutil.copy(ROOT / "manage.py", clone)
    (clone / "controlplane" / "stack" / "commands.py").write_text(_SHOW)
    (clone / "requirements.lock").write_text("# nothing\n")
    return clone


def _command(checkout: Path, *arguments: str) -> list[str]:
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    return [str(base), str(checkout / "manage.py"), *arguments]


def _env(tmp: Path, **more: str) -> dict[str, str]:
    """An empty home, and no uv."""
    home = tmp / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TWINPOOL_", "UV_", "VIRTUAL_ENV"))}
    return kept | {"HOME": str(home), "PATH": "/usr/bin:/bin"} | more


def _run(checkout: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = _env(checkout.parent, **more)
    return subprocess.run(_command(checkout, *arguments), env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_first_run_makes_the_environment_and_goes_on_in_it(checkout: Path) -> None:
    first = _run(checkout, "up", "--x")
    assert first.returncode == 5, first.stderr
    assert "making .venv" in first.stdout
    assert f"ran in {checkout / '.venv'} ['up', '--x']" in first.stdout
    second = _run(checkout, "status")
    assert second.stdout == f"ran in {checkout / '.venv'} ['status']\n"


def test_a_changed_lock_file_is_installed_again(checkout: Path) -> None:
    _run(checkout, "up")
    (checkout / "requirements.lock").write_text("# nothing, too\n")
    again = _run(checkout, "up")
    assert "installing 0 packages" in again.stdout
    assert "making .venv" not in again.stdout


def test_an_interrupted_installation_is_made_anew(checkout: Path) -> None:
    with subprocess.Popen(_command(checkout, "up"), env=_env(checkout.parent), stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (checkout / ".venv" / "pyvenv.cfg").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (checkout / ".venv" / "twinpool-lock.sha256").exists()
    (checkout / ".venv" / "torn").touch()
    after = _run(checkout, "up")
    assert after.returncode == 5, after.stderr
    assert not (checkout / ".venv" / "torn").exists()


def test_two_at_once_make_it_once(checkout: Path) -> None:
    env = _env(checkout.parent)
    both = [subprocess.Popen(_command(checkout, "up"), env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    shown = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [5, 5]
    assert "".join(shown).count("making .venv") == 1
    assert "".join(shown).count("waiting for it") == 1


def test_without_a_network_one_line_says_so(checkout: Path) -> None:
    (checkout / "requirements.lock").write_text(f"django==5.2 --hash=sha256:{'0' * 64}\n")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "0"}
    failed = _run(checkout, "up", PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS="", **nowhere)
    assert failed.returncode == 1
    assert failed.stderr.startswith("twinpool: cannot reach the package index: check network and proxy")
    assert failed.stderr.count("\n") == 1


def test_a_python_without_venv_is_told_what_to_install(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = bootstrap.ensure_environment(str(checkout), ["manage.py", "up"])
    assert refused is not None
    assert "has no `venv` module" in refused
    assert "-venv" in refused


def test_a_full_disk_is_told_before_anything_is_made(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_NEEDED_BYTES", 1 << 60)
    refused = bootstrap.ensure_environment(str(checkout), ["manage.py", "up"])
    assert refused is not None
    assert "is full" in refused
    assert not (checkout / ".venv").exists()


def test_an_old_python_reads_the_program_far_enough_to_refuse(checkout: Path) -> None:
    program = (checkout / "manage.py").read_text().replace("(3, 11)", "(3, 99)")
    (checkout / "manage.py").write_text(program)
    refused = _run(checkout, "up")
    assert refused.returncode == 1
    assert refused.stderr.startswith("twinpool: needs Python 3.11 or newer, this is 3.")
    compile(program, "manage.py", "exec", dont_inherit=True)
    assert 'f"' not in program

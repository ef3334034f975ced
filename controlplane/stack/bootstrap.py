"""The environment of the checkout: `.venv`, made from `requirements.lock` on first use. Standard library only.

A stamp inside it holds the hash of the lock file it was made from, written last: without the right stamp the installation is
done (again). A marker says that one was begun: if it is there, the last one was interrupted, and it is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from controlplane.common.locks import held
from controlplane.core.names import ENV_BOOTSTRAP
from controlplane.stack import installer
from controlplane.stack.errors import StackError
from controlplane.stack.install_errors import explain

_NEEDED_BYTES = 700 << 20


def ensure_environment(root: str, argv: list[str]) -> str | None:
    """Return None inside the right environment; otherwise make it and re-execute `argv` there (then this never returns).
    A returned text is the one line that says what is wrong and what helps."""
    if os.environ.get(ENV_BOOTSTRAP) == "off":
        return None
    environment = Environment(Path(root))
    try:
        environment.ensure()
    except StackError as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted; run it again to go on"
    if not environment.is_ours():
        sys.stdout.flush()
        command = [str(environment.python), str(environment.root / "manage.py"), *argv[1:]]
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    return None


class Environment:
    """The virtual environment of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.lock_file = root / "requirements.lock"
        self._stamp = self.folder / "twinpool-lock.sha256"
        self._begun = self.folder / "twinpool-begun"

    def is_ours(self) -> bool:
        """Whether this process runs inside it."""
        return Path(sys.prefix).resolve() == self.folder.resolve()

    def is_current(self) -> bool:
        """Whether it was completely made from the present lock file, and its interpreter still exists."""
        try:
            return self._stamp.read_text() == self._wanted() and self.python.exists()
        except OSError:
            return False

    def ensure(self) -> None:
        """Make it current. Raises StackError. Two processes at once: one works, the other waits for it."""
        if self.is_current():
            return
        try:
            waits = partial(_say, "another process is making the environment: waiting for it")
            with held(self.lock_file, wait_s=math.inf, waits=waits, create=False):
                if not self.is_current():
                    self._make()
        except FileNotFoundError as error:
            raise StackError(f"{error.filename} is missing: clone the repository again") from error
        except OSError as error:
            raise StackError(explain(f"{error.strerror}: {error.filename}", str(self.root))) from error

    def _make(self) -> None:
        if shutil.disk_usage(self.root).free < _NEEDED_BYTES and not self.python.exists():
            raise StackError(f"the disk of {self.root} is full: free {_NEEDED_BYTES >> 20} MB for .venv and run it again")
        if self._begun.exists() or not self._usable():
            self._remove()
        uv = shutil.which("uv")
        version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
        if not self.python.exists():
            _say(f"making .venv with Python {version}")
            self._create(uv)
        self._stamp.unlink(missing_ok=True)
        self._begun.touch()
        count = sum("==" in line for line in self.lock_file.read_text().splitlines() if line[:1].isalnum())
        tool, patience = ("uv", "a few seconds") if uv else ("pip", "about a minute")
        _say(f"installing {count} packages from requirements.lock with {tool} ({patience} on a fast network)")
        self._install(uv, count)
        self._stamp.write_text(self._wanted())
        self._begun.unlink()
        _say("the environment is ready")

    def _wanted(self) -> str:
        return hashlib.sha256(self.lock_file.read_bytes()).hexdigest()

    def _usable(self) -> bool:
        """Whether an existing environment has a working interpreter of a supported version."""
        try:
            check = [str(self.python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            return subprocess.run(check, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def _remove(self) -> None:
        if self.folder.is_symlink():
            raise StackError(f"{self.folder} is a link to an environment that does not work: remove it and run it again")
        if self.is_ours() and self.folder.exists():
            raise StackError(f"{self.folder} is incomplete: run python3 manage.py with an interpreter outside of it")
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _create(self, uv: str | None) -> None:
        self.folder.mkdir(exist_ok=True)
        self._begun.touch()
        if uv:
            self._run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(self.folder)])
            return
        for module in ("venv", "ensurepip"):
            if importlib.util.find_spec(module) is None:
                package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
                raise StackError(
                    f"this Python has no `{module}` module: install it (Debian: apt install {package}), or install uv"
                )
        self._run([sys.executable, "-m", "venv", str(self.folder)])

    def _install(self, uv: str | None, count: int) -> None:
        if uv:
            command = [uv, "pip", "sync", "--require-hashes", "--python", str(self.python), str(self.lock_file)]
            self._run(command, _show_uv)
            return
        command = [str(self.python), "-m", "pip", "install", "--require-hashes", "--no-deps", "--retries", "2"]
        command += ["--disable-pip-version-check", "--progress-bar", "off", "-r", str(self.lock_file)]
        self._run(command, installer.Progress(count, _say, sys.stdout if sys.stdout.isatty() else None))

    def _run(self, command: list[str], watch: Callable[[str], None] | None = None) -> None:
        installer.run(command, lambda output: explain(output, str(self.root)), watch=watch)


def _show_uv(line: str) -> None:
    if line.startswith(("Downloading", "Prepared", "Installed")):
        _say(line.lower())


def _say(text: str) -> None:
    print(f"twinpool: {text}", flush=True)

"""The state folder: its layout and its secrets."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.common.files import BadKey, read_key, write_private
from controlplane.common.keyring import Keyring
from controlplane.core import names, signing
from controlplane.stack.errors import StackError

DEFAULT = ".twinpool"


def chosen(option: str | None, root: Path) -> StateFolder:
    """The state folder of `--state`, else TWINPOOL_STATE, else `.twinpool` in the checkout `root`."""
    named = option or os.environ.get(names.ENV_STATE)
    return StateFolder(Path(named).expanduser().resolve() if named else root / DEFAULT)


@dataclass(frozen=True)
class StateFolder:
    """`path` is absolute. Nothing is read or made until asked for."""

    path: Path

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def fleet_key(self) -> Path:
        return self.secrets / "fleet.key"

    def fleet_secret(self) -> bytes:
        """Raises StackError."""
        try:
            return read_key(self.fleet_key, "the fleet secret")
        except BadKey as error:
            raise StackError(str(error)) from error

    def fleet_keys(self) -> Keyring:
        """With those before and after it. Raises StackError."""
        try:
            return Keyring(self.fleet_key)
        except BadKey as error:
            raise StackError(str(error)) from error

    @property
    def join_file(self) -> Path:
        """Where a joined node keeps its token."""
        return self.secrets / "join.json"

    @property
    def django_key(self) -> Path:
        return self.secrets / "django.key"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def indexer(self) -> Path:
        """The socket on which the indexer answers routers."""
        return self.run / "indexer.sock"

    @property
    def router(self) -> Path:
        return self.path / "router"

    def node(self, name: str) -> Path:
        """An agent's own folder."""
        return self.path / "nodes" / name

    def node_key(self, name: str) -> Path:
        """The file with one node's key, made from the fleet secret if it is not there."""
        file = self.secrets / "nodes" / f"{name}.key"
        key = signing.node_key(self.fleet_secret(), name)
        if not file.is_file() or file.read_bytes() != key:
            write_private(file, key)
        return file

    def create(self, *, for_node: bool = False) -> StateFolder:
        """Make what is missing. Others may pass through `path` (PostgreSQL may run as another user), not read it.
        `for_node`: a joining node keeps its own key alone. Raises StackError when the folder cannot be used."""
        if not str(self.path).isprintable():
            raise StackError(
                f"{str(self.path)!r:.200} has characters that no configuration can hold: choose another --state"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.path.stat().st_uid != os.geteuid():
                raise StackError(f"{self.path} belongs to another user: choose your own with --state, or become that user")
            if not self.secrets.is_dir() and any(self.path.iterdir()):
                raise StackError(f"{self.path} holds other things: name an empty or new folder with --state")
            self.path.chmod(0o711)
            for folder in (self.secrets, self.secrets / "nodes", self.logs, self.run, self.router, *self._work_folders()):
                folder.mkdir(mode=0o700, exist_ok=True)
            if not for_node:
                if self.join_file.is_file():
                    raise StackError(f"{self.path} is the folder of a node that joined a fleet: choose another with --state")
                self._keys()
        except OSError as error:
            message = f"cannot use the state folder {self.path}: {error.strerror}; choose another with --state"
            raise StackError(message) from error
        return self

    def environment(self) -> dict[str, str]:
        """Where every process finds the folder and its keys. Holds paths, no secrets."""
        return {
            names.ENV_STATE: str(self.path),
            names.ENV_FLEET_SECRET_FILE: str(self.fleet_key),
            names.ENV_DJANGO_SECRET_FILE: str(self.django_key),
        }

    def _work_folders(self) -> tuple[Path, ...]:
        return (self.path / "nodes", self.path / "models")

    def _keys(self) -> None:
        if not self.fleet_key.is_file():
            write_private(self.fleet_key, secrets.token_bytes(32))
        if not self.django_key.is_file():
            write_private(self.django_key, secrets.token_urlsafe(48).encode())


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; empty if there is no such file or it does not hold one."""
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

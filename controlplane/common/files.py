"""Files that are written whole or not at all, keys that only their owner may read, logs of bounded size.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

KEY_BYTES = 32
MAX_DOCUMENT_BYTES = 16 << 20
"""Of a document that somebody names: far above any model's config.json or engine's metrics page."""


class BadKey(ValueError):
    """A key file cannot be used. The message names the file and the remedy, never what is in it."""


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` with `content`, 0600, atomically and durably: a reader sees the old or the new one, also after a
    crash. Two processes may do it at once, two threads of one may not. Raises OSError; then the old one stays."""
    making = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        making.rename(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_key(path: Path, what: str) -> bytes:
    """The 32 bytes of a key file (`what` it is, for the message). Raises BadKey."""
    try:
        with open_document(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise BadKey(f"cannot read {what} {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadKey(f"{what} {path} is open to other users: chmod 600 {path}")
    if len(key) != KEY_BYTES:
        size = len(key) if len(key) < KEY_BYTES else "more"
        raise BadKey(f"{what} {path} has {size} bytes instead of {KEY_BYTES}: make it again")
    return key


def open_document(path: Path) -> BinaryIO:
    """A file that somebody names, which may be anything. A named pipe that nobody writes to is empty at once, instead of
    making everybody wait for a writer. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    except OSError:  # a folder
        os.close(descriptor)
        raise
    os.set_blocking(descriptor, True)
    return file


def read_document(path: Path) -> str:
    """The text of a file that somebody names, which may be anything (a device that never ends, for one). Raises OSError,
    also for more than MAX_DOCUMENT_BYTES and a pipe that nobody writes to, and UnicodeDecodeError for what is no UTF-8."""
    with open_document(path) as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPIPE, "nobody writes to this pipe", str(path))
    if len(content) > MAX_DOCUMENT_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_DOCUMENT_BYTES:,} bytes", str(path))
    return content.decode("utf-8")


def rotate(path: Path, limit_bytes: int, keep: int = 1) -> bool:
    """Moves a log longer than `limit_bytes` to `<name>.1`, `.1` to `.2` and so on up to `keep`, while its writer goes on.

    The writer holds the file open for appending, so the file is copied and truncated instead of renamed: lines written
    between the two are lost, which is the price of never signalling a process because of its log. Raises OSError.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= limit_bytes:
        return False
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    with path.open("rb") as source, path.with_name(f"{path.name}.1").open("wb") as target:
        os.fchmod(target.fileno(), 0o600)
        # Of a log that grew far beyond the limit since the last look, the newest part is kept.
        source.seek(max(0, size - 2 * limit_bytes))
        shutil.copyfileobj(source, target, 1 << 20)
    os.truncate(path, 0)
    return True

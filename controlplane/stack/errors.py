"""The one exception of this package. Standard library only: the bootstrap uses it before any dependency exists."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_REMEDIES = {
    errno.ENOSPC: "free some space on its disk, or choose another --state",
    errno.EDQUOT: "free some of your quota, or choose another --state",
    errno.EACCES: "make it accessible for you, or choose another --state",
    errno.EPERM: "make it accessible for you, or choose another --state",
    errno.ENOTDIR: "name a folder with --state",
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.EROFS: "choose another --state",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u)",
}


class StackError(Exception):
    """Something the operator can repair. The message is one line: what is wrong, then the remedy. Never holds a secret."""


@contextmanager
def explained() -> Iterator[None]:
    """What the system refuses for a known reason becomes a StackError; anything else is a fault and stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise StackError(f"{(error.strerror or 'refused').lower()}{where}: {_REMEDIES[error.errno]}") from error

"""`manage.py down`: stop the stack of a state folder, also when its supervisor is gone or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from controlplane.stack import joined, record
from controlplane.stack.folder import StateFolder
from controlplane.stack.leftovers import stop_leftovers

_PATIENCE_S = 25.0


def run(state: StateFolder) -> int:
    """Stop everything, engines too. Nothing running is no error."""
    known = record.look(state)
    if known is None and (node := joined.node_name(state)):
        stopped = joined.stop(state, node)
        print(f"twinpool: stopped {', '.join(stopped)}" if stopped else f"twinpool: nothing is running on {state.path}")
        return 0
    if known and known.is_supervised():
        _ask(known.pid)
        deadline = time.monotonic() + _PATIENCE_S
        while known.is_supervised() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not known.is_supervised():
            print("twinpool: stopped")
            return 0
        print("twinpool: the supervisor does not end: killing it")
        with contextlib.suppress(ProcessLookupError):
            os.kill(known.pid, signal.SIGKILL)
    ended = stop_leftovers(state, with_engines=True)
    record.remove(state)
    print(f"twinpool: stopped {', '.join(ended)}" if ended else f"twinpool: nothing is running on {state.path}")
    return 0


def _ask(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)

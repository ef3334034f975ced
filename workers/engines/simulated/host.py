"""What faults do to the process: it dies, stops answering, or is another start behind the same ports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

FIRST_OWN_DESCRIPTOR = 3


class ThisProcess:
    """See admin.Host. `again` is the command line of the next start."""

    def __init__(self, again: Sequence[str]) -> None:
        self._again = list(again)

    def keep_ports(self, port: int, side_port: int) -> None:
        """The next start listens there, even if this one was free to choose."""
        self._again += ["--port", str(port), "--side-port", str(side_port)]

    def die(self) -> None:
        """At once, as when an engine core crashes: connections are cut, nothing is said."""
        os._exit(1)

    def restart(self, down_s: float) -> None:
        """The same process runs a new start: connections are cut, nothing of the old state is left, and for `down_s`
        nobody listens."""
        os.closerange(FIRST_OWN_DESCRIPTOR, 1 << 16)
        time.sleep(down_s)
        os.execv(sys.executable, self._again)  # noqa: S606  # our own command line, no shell

    def freeze(self, seconds: float) -> None:
        """Nothing is answered, not even signals that ask to stop, while connections are still accepted by the kernel."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 3600.0))

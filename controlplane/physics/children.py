"""Questions to a process of its own, so that computing never holds up whoever asks: no Django, nothing shared."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

log = logging.getLogger(__name__)


def answers(module: str, question: str, within_s: float) -> Generator[Any]:
    """What `python -m MODULE` says to a question on its standard input: the value of each line of JSON, as they come.

    Those that do not come within `within_s` seconds or at all are left out, which is logged. Whoever stops reading ends the
    process.
    """
    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    name = module.rpartition(".")[2]
    try:
        process = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        log.error("%s cannot be started: %s", name, error.strerror)
        return
    with process, _killed_after(process, within_s):
        assert process.stdin and process.stdout and process.stderr
        try:
            process.stdin.write(question)
            process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
        except (OSError, ValueError) as error:
            log.error("%s failed: %s", name, type(error).__name__)
        said = process.stderr.read().strip()
        if process.wait():
            log.error("%s failed: %s", name, said.splitlines()[-1] if said else f"exit {process.returncode}")


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        process.kill()

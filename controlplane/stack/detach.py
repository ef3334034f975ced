"""`up --detach`: the stack in a session of its own, its progress passed to the waiting terminal through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from controlplane.core.scenes import SCENES
from controlplane.stack import record
from controlplane.stack.errors import StackError
from controlplane.stack.folder import StateFolder
from controlplane.stack.options import Options
from controlplane.stack.output import drop_output
from controlplane.stack.scene_needs import prepare_models
from controlplane.stack.services import ROOT


class Report:
    """The supervisor's end of the pipe: JSON lines {"line"}, {"ready"}, {"failed"}. Without a descriptor, nothing."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def is_open(self) -> bool:
        """Whether a terminal waits at the other end."""
        return self._descriptor is not None

    def line(self, text: str) -> None:
        self._send({"line": text})

    def say(self, text: str) -> None:
        """A line before there is an output of the stack: to this terminal and to the waiting one."""
        print(f"twinpool: {text}", flush=True)
        self.line(f"twinpool: {text}")

    def ready(self) -> None:
        self._send({"ready": True})
        self._close()

    def failed(self, problem: str) -> None:
        self._send({"failed": problem})
        self._close()

    def _send(self, message: dict[str, object]) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def start(options: Options, arguments: Sequence[str]) -> int:
    """Start it and return when it is ready. Raises StackError when it does not get there."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state = options.state.create()
    with ExitStack() as noted:
        with record.only_supervisor(state):
            noted.enter_context(record.starting(state, options.fleet))
            prepare_models(SCENES[options.fleet], state)  # here, where its progress is seen
        reading, writing = os.pipe()
        process = spawn(state, arguments, writing)
        os.close(writing)
        try:
            follow(reading, process, state, _show)
            return 0
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def spawn(
    state: StateFolder, arguments: Sequence[str], report: int, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """The supervisor of a stack, which tells its progress into the pipe `report`. `env`: in place of this process's own."""
    kept = [argument for argument in arguments if argument != "--detach"]
    with (state.logs / "up.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "manage.py", "up", *kept, "--state", str(state.path), "--report-fd", str(report)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[report],
            env=env,
            start_new_session=True,
        )


def follow(reading: int, process: subprocess.Popen[bytes], state: StateFolder, show: Callable[[str], None]) -> None:
    """Wait until it is ready, and show what it says until then. Raises StackError when it does not get there."""
    with os.fdopen(reading, encoding="utf-8") as messages:
        for text in messages:
            message = json.loads(text)
            if "failed" in message:
                raise StackError(message["failed"])
            if "ready" in message:
                return
            show(message.get("line", ""))
    process.wait()
    raise StackError(f"the stack ended while it started (exit code {process.returncode}): see {state.logs / 'up.log'}")


def _show(line: str) -> None:
    """A reader that had enough (`up --detach | head -1`) must not end the waiting: the exit code tells whether it is up."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        drop_output()

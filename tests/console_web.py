"""A web process of its own for a test, as `up` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

import httpx

from controlplane.core import names


@dataclass
class Web:
    """A web process of our own on a fixed port, so that it can go away and come back."""

    port: int
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ("-m", "controlplane.live.server")
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, *self.program, "--port", str(self.port)]
        environment = {**os.environ, names.ENV_CONSOLE_ORIGINS: self.url, **self.environment}
        self.process = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 240  # a starved machine imports for minutes
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/healthz").is_success:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None, "the web process ended"
            time.sleep(0.1)
        raise AssertionError("the web process does not answer")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

"""Puts an agent together and runs it."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from celery.platforms import SecurityWarning

from controlplane.common.locks import Held, held
from workers.app import run
from workers.config import BadConfig, read_config
from workers.engines.base import Driver
from workers.node import Node
from workers.probes import open_probe
from workers.probes.base import ProbeFailed

LOCK_WAIT_S = 5.0


class AlreadyRunning(RuntimeError):
    """Another agent owns the state folder."""


def main(drivers: Mapping[str, Driver], argv: Sequence[str] | None = None) -> int:
    """Runs the agent of a command line until it is told to end. Returns the exit code; 2: it cannot start as told."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Celery warns of root because of pickled messages; this worker takes JSON alone, and that signed.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    for chatty in ("celery.worker.strategy", "celery.app.trace", "kombu"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        config = read_config(argv, os.environ)
        probe = open_probe(config.node, config.accelerators)
        with only_agent(config.state):
            return run(Node(config, drivers, probe))
    except (BadConfig, ProbeFailed, AlreadyRunning, OSError) as error:
        print(f"the agent cannot start: {error}", file=sys.stderr)  # noqa: T201  # for the person who started it
        return 2


@contextmanager
def only_agent(state: Path) -> Iterator[None]:
    """One agent per state folder (made if missing): a second one would kill what the first one runs. Waits a little for an
    agent that is just ending. Raises AlreadyRunning, OSError."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with held(state / "agent.lock", wait_s=LOCK_WAIT_S):
            yield
    except Held:
        raise AlreadyRunning(f"another agent runs with the state folder {state}: stop it, or give another --state") from None

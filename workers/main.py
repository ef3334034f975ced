"""Puts an agent together and runs it."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

from celery.platforms import SecurityWarning

from workers import lock
from workers.app import run
from workers.config import BadConfig, read_config
from workers.engines.base import Driver
from workers.node import Node
from workers.probes import open_probe
from workers.probes.base import ProbeFailed


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
        with lock.take(config.state):
            return run(Node(config, drivers, probe))
    except (BadConfig, ProbeFailed, lock.AlreadyRunning, OSError) as error:
        print(f"the agent cannot start: {error}", file=sys.stderr)  # noqa: T201  # for the person who started it
        return 2

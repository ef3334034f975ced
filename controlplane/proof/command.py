"""`manage.py prove-rebalance`: changes at random under streams, on a fleet of its own, and whether anything was lost."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.proof.display import Display
from controlplane.proof.fleet import started
from controlplane.proof.schedule import schedule
from controlplane.stack import engine_env


@dataclass(frozen=True)
class Size:
    """A fleet of core.scenes, its engines, and what is done on it unless the options say otherwise."""

    scene: str
    engines: int
    streams: int
    rebalances: int
    toggles: int


SIMULATED = Size("proof", 6, 32, 20, 20)
REAL = Size("vllm", 2, 6, 10, 4)


def run(arguments: Sequence[str]) -> int:
    """Exit code 0: nothing was lost and every change was done. Raises StackError when the fleet does not come up."""
    options = _parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    size = REAL if options.vllm else SIMULATED
    streams, rebalances, toggles = (
        getattr(size, name) if (given := getattr(options, name)) is None else given
        for name in ("streams", "rebalances", "toggles")
    )
    changes = schedule(random.Random(seed), size.engines, rebalances, toggles)  # noqa: S311 - repeatable
    with Display() as display:
        if options.vllm:
            display.doing("looking for the environment of real engines")
            engine_env.ensure()  # here, where its progress is seen
        display.doing("starting a fleet of its own")
        with started(size.scene, lambda _line: None, "--router-processes", "2", logs=options.logs) as fleet:
            fleet.adopt_environment()
            # Django reads its settings when it is imported: not before they are this fleet's.
            import django

            django.setup()
            from controlplane.proof.run import prove

            report = prove(fleet, streams, changes, seed, display)
        display.doing("stopping it")
    if options.json:
        print(json.dumps(report.as_json(), indent=1))  # noqa: T201
    else:
        print("\n".join(report.lines()))  # noqa: T201
    sys.stdout.flush()
    return 0 if report.holds else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py prove-rebalance",
        description="Start a fleet of its own, keep streams open on it, rebalance and toggle its model at random, and check "
        "every answer against the one that had to come. Nothing of a running stack is touched.",
        epilog="The full run: --streams 64 --rebalances 100 --toggles 50. Exit code 0: nothing was lost, 1: something was.",
    )
    parser.add_argument("--streams", type=Count(1, 512), metavar="N", help="open at all times (default 32; --vllm: 6)")
    parser.add_argument("--rebalances", type=Count(0, 10_000), metavar="N", help="(default 20; --vllm: 10 exchanges)")
    parser.add_argument("--toggles", type=Count(0, 10_000), metavar="N", help="changes of mode (default 20; --vllm: 4)")
    parser.add_argument("--vllm", action="store_true", help="on two real engines, which exchange their roles")
    parser.add_argument("--seed", type=Count(0, (1 << 31) - 1), metavar="N", help="repeat a run (default: by chance)")
    parser.add_argument("--logs", type=folder, metavar="DIR", help="keep the logs of its processes there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def folder(text: str) -> Path:
    """An option's folder, made if it is not there: what cannot be is said before anybody waits."""
    folder = Path(text).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise argparse.ArgumentTypeError(f"{text!r:.200} cannot be a folder: {problem}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r:.200} cannot be written to")
    return folder


class Count:
    """A whole number within limits, as an option's type."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __call__(self, text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() else -1
        if not self._least <= number <= self._most:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is no number from {self._least} to {self._most}")
        return number

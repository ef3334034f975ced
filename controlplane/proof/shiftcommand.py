"""`manage.py prove-planner`: a load whose mix shifts, on a fleet of its own that the planner may change by itself."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections.abc import Sequence

from controlplane.proof.command import Count, folder
from controlplane.proof.display import Display
from controlplane.proof.fleet import started

SCENE = "shift"


def run(arguments: Sequence[str]) -> int:
    """Exit code 0: the planner answered the shift and nothing was lost. StackError: the fleet does not come up."""
    options = _parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    with Display() as display:
        display.doing("starting a fleet of its own")
        with started(SCENE, lambda _line: None, logs=options.logs) as fleet:
            fleet.adopt_environment()
            # Django reads its settings when it is imported: not before they are this fleet's.
            import django

            django.setup()
            from controlplane.proof.shift import prove

            found = prove(fleet, options.minutes, seed, display)
        display.doing("stopping it")
    print(json.dumps(found.as_json(), indent=1) if options.json else "\n".join(found.lines()))  # noqa: T201
    sys.stdout.flush()
    return 0 if found.holds_true else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py prove-planner",
        description="Start a fleet of its own whose planner acts by itself, send long prompts, then long answers, and check "
        "that it changes the split and that every answer is the one that had to come. No running stack is touched.",
        epilog="Exit code 0: it answered the shift and nothing was lost. The planner wants five minutes of traffic.",
    )
    parser.add_argument("--minutes", type=Count(1, 240), default=10, metavar="N", help="of load in real time (default 10)")
    parser.add_argument("--seed", type=Count(0, (1 << 31) - 1), metavar="N", help="repeat a run (default: by chance)")
    parser.add_argument("--logs", type=folder, metavar="DIR", help="keep the logs of its processes there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)

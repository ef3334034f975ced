"""Kills every kind of process at every step of every kind of operation, under streams, and checks what must hold afterwards.

    manage.py bench kill_matrix [--kinds K ...] [--victims V ...] [--boundaries N] [--cells N] [--streams N] [--seed N]

A fleet of its own (6 simulated engines on 2 nodes, 2 router processes). A cell is one operation in which one process gets
`kill -9` at one boundary (controlplane/proof/cells.py). It holds if the operation ends done or rolled back, everything
runs again, all invariants (controlplane/proof/invariants.py) hold within 10 s of that, and no stream is lost but those on a
killed engine or router, which end so that their client knows. By default every cell that is reached; `--cells` takes so many
at random.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.proof.fleet import Fleet, started
from controlplane.proof.questions import simulated_questions
from controlplane.proof.streams import Streams

if TYPE_CHECKING:
    from controlplane.proof.cells import Cell
    from controlplane.proof.killing import Matrix, Result

MOST_BOUNDARIES = 24
SAMPLED_BOUNDARIES = 5
"""Every kind has about so many."""


def main() -> int:
    options = _options()
    with started("proof", lambda _line: None, "--router-processes", "2", logs=options.logs) as fleet:
        fleet.adopt_environment()
        import django

        django.setup()
        return _run(fleet, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="manage.py bench kill_matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", metavar="K", help="of operations (default: all)")
    parser.add_argument("--victims", nargs="+", metavar="V", help="processes to kill (default: all)")
    parser.add_argument(
        "--boundaries", type=int, default=MOST_BOUNDARIES, metavar="N", help="at most so many of an operation"
    )
    parser.add_argument("--cells", type=int, metavar="N", help="so many at random (default: all)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="open at all times (default 8)")
    parser.add_argument("--settle", type=float, default=10.0, metavar="S", help="seconds after recovery (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of its processes there")
    return parser.parse_args()


def _run(fleet: Fleet, options: argparse.Namespace) -> int:
    from controlplane.proof import cells, killing

    chance = random.Random(options.seed)
    streams = Streams("127.0.0.1", fleet.router_port, simulated_questions("qwen3-8b", 16, chance), options.streams)
    kinds, victims = options.kinds or list(cells.KINDS), options.victims or list(cells.VICTIMS)
    streams.start()
    try:
        matrix = killing.Matrix(fleet, streams, options.settle)
        if options.cells is None:
            results = _every(matrix, kinds, victims, options.boundaries)
        else:
            results = _sample(matrix, kinds, victims, options.cells, chance)
        streams.finish()
    finally:
        streams.abandon()
    bad = [each for each in results if each.problems]
    print(f"ends: {killing.ends(results)}; load average of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")
    print(
        f"{len(bad)} of {len(results)} cells do not hold; {streams.ended} streams, {streams.counts['exact']} exact, "
        f"{streams.counts['failed']} ended early, {streams.counts['refused']} refused while the router was away "
        f"(--seed {options.seed})"
    )
    return int(bool(bad) or not results)


def _every(matrix: Matrix, kinds: list[str], victims: list[str], boundaries: int) -> list[Result]:
    """Boundary by boundary, victims in turn: a process that is killed again and again is started again ever more slowly."""
    from controlplane.proof.cells import Cell

    results: list[Result] = []
    through: set[tuple[str, str]] = set()
    for kind, boundary, victim in itertools.product(kinds, range(boundaries), victims):
        if (kind, victim) not in through:
            result = _one(matrix, Cell(kind, boundary, victim))
            if result.reached:
                results.append(result)
            else:
                through.add((kind, victim))
    return results


def _sample(matrix: Matrix, kinds: list[str], victims: list[str], count: int, chance: random.Random) -> list[Result]:
    """So many cells that are reached, every victim in turn."""
    from controlplane.proof.cells import Cell

    results: list[Result] = []
    chance.shuffle(victims)
    while len(results) < count:
        victim = victims[len(results) % len(victims)]
        result = _one(matrix, Cell(chance.choice(kinds), chance.randrange(SAMPLED_BOUNDARIES), victim))
        if result.reached:
            results.append(result)
    return results


def _one(matrix: Matrix, cell: Cell) -> Result:
    began = time.monotonic()
    result = matrix.run(cell)
    print(f"{cell}: {result.told()}, {time.monotonic() - began:.0f} s", flush=True)
    for problem in result.problems:
        print(f"  PROBLEM {problem}", flush=True)
    return result


if __name__ == "__main__":
    raise SystemExit(main())

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machine_fleet import Fleet, machine_fleet
from stack import Stack, started


@pytest.fixture(scope="session")
def demo() -> Iterator[Stack]:
    """The demonstration fleet without its traffic, started once and stopped at the end: then nothing of it may be left."""
    with started("demo") as stack:
        yield stack


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """A stack and two nodes, each on a machine of its own."""
    with machine_fleet() as made:
        yield made

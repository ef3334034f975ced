from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stack import Stack


@pytest.fixture(scope="session")
def demo() -> Iterator[Stack]:
    """The demonstration fleet without its traffic, started once and stopped at the end: then nothing of it may be left."""
    state = Path(tempfile.mkdtemp(prefix="twinpool-demo-"))
    stack = Stack(state, "demo")
    try:
        stack.up("--traffic", "off")
        yield stack
        stack.down()
        assert stack.pids() == set()
    finally:
        stack.manage("down", check=False)
        shutil.rmtree(state, ignore_errors=True)

"""Finished runs of a simulated day in a file, one JSON line each, so that an interrupted day goes on where it stopped.

A line is found again by all that the day was set to and by its requests; of the code nothing is known: after a change of the
planner or the simulation, begin a new file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controlplane.core.forecast import Arrival, ForecastRefused


class Kept:
    """`path` None: nothing is kept. Raises ForecastRefused for a file that cannot be read or is none of ours."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._runs[row["key"]] = row["run"]
        except OSError as error:
            raise ForecastRefused(f"--keep: cannot read {str(path)!r:.200}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError):
            raise ForecastRefused(
                f"--keep: {str(path)!r:.200} holds other lines than a day's runs; name a new file"
            ) from None

    def run(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The run of `key`, computed if it is not there. Raises ForecastRefused where it cannot be written."""
        if key not in self._runs:
            self._runs[key] = compute()
            if self._path is not None:
                try:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": key, "run": self._runs[key]}) + "\n")
                except OSError as error:
                    raise ForecastRefused(f"--keep: cannot write {str(self._path)!r:.200}: {error.strerror}") from None
        return self._runs[key]


def key_of(settings: Sequence[object], arrivals: Sequence[Arrival]) -> str:
    """Of what a run was set to, and of its requests."""
    told = hashlib.sha256(repr(tuple(settings)).encode())
    told.update(repr([tuple(each) for each in arrivals]).encode())
    return told.hexdigest()

"""What a person sees while a proof runs: a bar, and a line per change. On the error stream, so that `--json` stays clean."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from controlplane.proof.schedule import Change, Ended
from controlplane.proof.streams import Streams


class Display:
    """A context manager. Without a terminal only the lines are shown."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[counts]}"),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("starting a fleet of its own", total=None, counts="")

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def doing(self, what: str) -> None:
        """A phase that is not a change, such as starting."""
        self._progress.update(self._task, description=what)
        if not self._console.is_terminal:
            self._console.print(what)

    def planned(self, changes: int) -> None:
        self._progress.update(self._task, total=changes)

    def change(self, number: int, change: Change) -> None:
        self._progress.update(self._task, description=str(change), completed=number)

    def counts(self, streams: Streams) -> None:
        self._progress.update(self._task, counts=f"{streams.ended} streams, {streams.open} open, {streams.lost} lost")

    def seconds(self, passed: float, streams: Streams) -> None:
        """How far a run by time is."""
        self._progress.update(self._task, completed=round(passed))
        self.counts(streams)

    def ended(self, number: int, of: int, ended: Ended) -> None:
        self._progress.update(self._task, completed=number)
        colour = "" if ended.good else "red"
        more = "" if ended.good else f": {ended.outcome}"
        line = f"{number:>3}/{of} {ended.change}: {ended.state} after {ended.seconds:.2f} s{more}"
        self._console.print(Text(line, style=colour), soft_wrap=True)

"""Operations and plans as a terminal shows them: plain lines, or a table that stays in place while something runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from controlplane.control.watching import Seen
from controlplane.core.counts import some
from controlplane.core.preview import PlannedStep, Preview
from controlplane.fleet import models

COLOUR = {"done": "green", "running": "yellow", "failed": "red", "skipped": "bright_black"}


def step_text(step: PlannedStep | models.Step, label: str = "") -> str:
    """One step in a few words, e.g. `retask P2 -> decode`."""
    pool = step.role if step.arm == models.MAIN else f"{step.arm}/{step.role}"
    engine = label or step.engine
    if step.verb == "switch":
        return f"switch to {step.role}" if step.role else "switch the mode"
    if step.verb == "retask":
        return f"retask {engine or 'an engine'} -> {pool}"
    return f"{step.verb} {engine or f'an engine of {pool}'}"


def plan_lines(plan: Preview) -> Iterator[str]:
    """A plan for people."""
    subject = f" {plan.model}" if plan.model else ""
    if not plan.steps:
        yield f"{plan.verb}{subject}: nothing is to be done on any engine"
    else:
        how = "at once, no engine is restarted" if plan.instant else "rolling: engines are started or stopped"
        count = some(len(plan.steps), "step")
        yield f"{plan.verb}{subject}: {count}, {how}"
    for number, step in enumerate(plan.steps, 1):
        place = f" on {step.node}" if step.node else ""
        yield f"  {number:>2}. {step_text(step, step.label)}{place}: {step.reason}"
    if not plan.complete:
        yield "  … and more of the same"
    for pool in plan.pools:
        course = f"{pool.now} serving now, at least {pool.lowest} meanwhile, {pool.then} then"
        yield f"  {pool.pool}: {course} (floor {pool.floor})"
    yield from (f"  would wait: {why}" for why in plan.waits)
    if plan.steps:
        yield f"  {_estimate(plan)}"


def _estimate(plan: Preview) -> str:
    found = plan.estimate
    if found is None:
        return f"how long: not known, no {plan.verb} has ended yet"
    many = f"{found.operations} earlier ones" if found.operations > 1 else "one earlier one"
    return f"how long: about {found.median_s:.1f} s (half of {many}: {found.low_s:.1f} to {found.high_s:.1f} s)"


def plan_document(plan: Preview) -> dict[str, Any]:
    return {"dry_run": True, **asdict(plan)}


def operation_document(seen: Seen) -> dict[str, Any]:
    """Everything that is kept of an operation, as JSON."""
    row = seen.operation
    return {
        "operation": row.pk,
        "verb": row.verb,
        "model": row.model.name if row.model else None,
        "subject": seen.subject,
        "state": row.state,
        "actor": row.actor,
        "reason": row.reason,
        "outcome": row.outcome,
        "created_at": _time(row.created_at),
        "finished_at": _time(row.finished_at),
        "undoes": row.undoes_id,
        "before": row.before,
        "after": row.after,
        "measured": row.measured,
        "requests": seen.requests,
        "lost": seen.lost,
        "steps": [
            {
                "verb": step.verb,
                "role": step.role,
                "arm": step.arm,
                "engine": step.engine,
                "state": step.state,
                "reason": step.reason,
            }
            for step in seen.steps
        ],
    }


def _time(at: datetime | None) -> str | None:
    return at.isoformat(timespec="milliseconds") if at else None


def headline(seen: Seen) -> str:
    """An operation in one line."""
    row = seen.operation
    subject = f" {seen.subject}" if seen.subject else ""
    steps = f", {seen.done} of {len(seen.steps)} steps" if seen.steps else ""
    lost = "" if seen.lost is None else f", {seen.lost} of {seen.requests} requests lost"
    outcome = f": {row.outcome}" if row.outcome else ""
    return f"operation {row.pk} {row.verb}{subject} is {row.state}{steps}{lost}{outcome}"


def measured_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """What was measured before and after; nothing while it is not."""
    if "before" not in measured:
        return
    before, after = measured["before"], measured["after"]
    yield f"  {'':24}{'before':>12}{'after':>12}"
    for name, path in (
        ("TTFT p50, ms", ("ttft_ms", "p50")),
        ("TTFT p99, ms", ("ttft_ms", "p99")),
        ("ITL p50, ms", ("itl_ms", "p50")),
        ("ITL p99, ms", ("itl_ms", "p99")),
        ("effective GPUs", ("effective_gpus",)),
        ("$ per 1M tokens (guess)", ("cost_per_million_tokens",)),
        ("requests", ("requests",)),
    ):
        yield f"  {name:24}{_figure(before, path):>12}{_figure(after, path):>12}"
    for when, found in (("before", before), ("after", after)):
        yield from (f"  {when}: {gap}" for gap in found["gaps"])


def _figure(side: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = side
    for name in path:
        value = value[name]
    return "unknown" if value is None else f"{value:,.0f}" if isinstance(value, int) else f"{value:,.2f}"


class Display:
    """A context manager that shows an operation while it runs: in place on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)
        self._said = ""

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def show(self, seen: Seen) -> None:
        if self._console.is_terminal:
            self._live.update(picture(seen))
            return
        line = headline(seen)
        if line != self._said:
            self._said = line
            self._console.print(Text(line), soft_wrap=True)


def picture(seen: Seen) -> RenderableType:
    """What stands on a terminal while an operation runs: its steps, and the requests that they wait for."""
    table = Table.grid(padding=(0, 2))
    for step in seen.steps:
        work = seen.in_flight.get(step.engine)
        busy = f"{work} in flight" if work is not None and step.state in ("waiting", "running") else ""
        state = Text(step.state, style=COLOUR.get(step.state, ""))
        table.add_row(
            state, Text(step_text(step, seen.labels.get(step.engine, ""))), busy, Text(step.reason, style="bright_black")
        )
    bar = ProgressBar(total=max(1, len(seen.steps)), completed=seen.done, width=40)
    return Group(Text(headline(seen)), bar, table)

"""`manage.py experiment NAME`: runs a documented experiment and prints what it found beside what others measured."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.physics.commandline import PhysicsCommand, check_writable, progress, real
from controlplane.physics.experiments import fieldpage, plannerday, splitrank
from controlplane.physics.experiments.daytraffic import DAY_S, HOUR_S, Hour
from controlplane.physics.experiments.fieldrows import Finding, findings
from controlplane.physics.experiments.fieldstory import field_story
from controlplane.physics.traces import TraceRefused, read_trace

EXPERIMENTS = ("field-story", "planner-day", "planner-splits")
MOST_SETTINGS = 1000
RECORDED = ("chat", "code", "documents")
WIDTH = 118


class Command(PhysicsCommand):
    help = "Run a documented experiment (docs/experiments/): what the models give beside what was measured elsewhere."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "name",
            choices=EXPERIMENTS,
            help="field-story takes about a minute, planner-day half an hour of one core, planner-splits five",
        )
        parser.add_argument("--json", action="store_true", help="print the document instead of the findings")
        parser.add_argument("--html", type=Path, metavar="FILE", help="field-story: write a page with charts")
        group = parser.add_argument_group(
            "planner-day and planner-splits", "an hour each of recorded traffic; docs/experiments/planner-day.md"
        )
        for kind in RECORDED:
            group.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"the trace of {kind}")
        group.add_argument("--count", type=int, default=20, metavar="N", help="planner-splits: so many; default 20")
        group.add_argument("--hours", type=real, default=DAY_S / HOUR_S, metavar="H", help="of virtual time, default 24")
        group.add_argument("--keep", type=Path, metavar="FILE", help="keep finished runs in it, and go on from there")
        group.add_argument(
            "--control",
            action="append",
            default=[],
            metavar="NAME",
            help="planner, 'reactive ±1', 'fixed 6:2', …; default all",
        )
        group.add_argument("--traffic", default="", metavar="NAME", help=f"{', '.join(plannerday.TRAFFIC)}; default all")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["name"] == "planner-day":
            self._planner_day(options)
            return
        if options["name"] == "planner-splits":
            self._planner_splits(options)
            return
        target: Path | None = options["html"]
        if target:
            check_writable(target)
        with progress(shown=self.stderr.isatty()) as report:
            document = field_story(report)
        if target:
            try:
                target.write_text(fieldpage.rendered(document), encoding="utf-8")
            except OSError as error:
                raise CommandError(f"--html: cannot write {target}: {error.strerror}") from None
        self.stdout.write(json.dumps(document, indent=2) if options["json"] else table(findings(document)))

    def _planner_day(self, options: dict[str, Any]) -> None:
        if options["html"]:
            raise CommandError("--html: planner-day has no page; leave it out")
        if not isinstance(options["hours"], float) or not 0 < options["hours"] <= 24:
            raise CommandError(f"--hours must be above 0 and at most 24, got {options['hours']!r:.40}")
        if options["traffic"] not in ("", *plannerday.TRAFFIC):
            raise CommandError(f"--traffic must be one of {', '.join(plannerday.TRAFFIC)}, got {options['traffic']!r:.40}")
        for name in options["control"]:
            if name not in plannerday.CONTROLS:
                raise CommandError(f"--control must be one of {', '.join(plannerday.CONTROLS)}, got {name!r:.40}")
        if options["keep"]:
            check_writable(options["keep"], "--keep")
        hours = [_hour(kind, options[kind]) for kind in RECORDED]
        with progress(shown=self.stderr.isatty()) as report:
            document = plannerday.planner_day(
                hours, report, options["hours"] * HOUR_S, options["traffic"], options["control"], options["keep"]
            )
        self.stdout.write(json.dumps(document, indent=2) if options["json"] else plannerday.summary(document))

    def _planner_splits(self, options: dict[str, Any]) -> None:
        if options["html"]:
            raise CommandError("--html: planner-splits has no page; leave it out")
        if not 1 <= options["count"] <= MOST_SETTINGS:
            raise CommandError(f"--count must be from 1 to {MOST_SETTINGS}, got {options['count']}")
        hours = [_hour(kind, options[kind]) for kind in RECORDED]
        with progress(shown=self.stderr.isatty()) as report:
            document = splitrank.split_rank(hours, options["count"], report)
        self.stdout.write(json.dumps(document, indent=2) if options["json"] else splitrank.summary(document))


def _hour(kind: str, path: Path | None) -> Hour:
    if path is None:
        raise CommandError(
            f"this experiment needs recorded traffic: give --{', --'.join(RECORDED)} (docs/forecast.md: formats)"
        )
    try:
        return Hour.of(kind, read_trace(path).arrivals, plannerday.MOST_PROMPT)
    except TraceRefused as refused:
        raise CommandError(f"--{kind} {str(path)!r:.200}: {refused}") from None


def table(found: Sequence[Finding]) -> str:
    """The findings for a terminal."""
    blocks = []
    for finding in found:
        wide = max(len(figure.definition) for figure in finding.figures)
        lines = [finding.title, f"  the field   {finding.field}"]
        for number, figure in enumerate(finding.figures):
            lines.append(f"  {'the model' if not number else '':<10}  {figure.definition:<{wide}}  {figure.value}")
        lines.append(textwrap.fill(finding.verdict, WIDTH, initial_indent="  verdict     ", subsequent_indent=" " * 14))
        lines.append(textwrap.fill(finding.why, WIDTH, initial_indent="  why         ", subsequent_indent=" " * 14))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)

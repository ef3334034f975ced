"""`manage.py experiment NAME`: runs a documented experiment and prints what it found beside what others measured."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.physics.commandline import PhysicsCommand, check_writable, progress
from controlplane.physics.experiments import fieldpage
from controlplane.physics.experiments.fieldrows import Finding, findings
from controlplane.physics.experiments.fieldstory import field_story

EXPERIMENTS = ("field-story",)
WIDTH = 118


class Command(PhysicsCommand):
    help = "Run a documented experiment (docs/experiments/): what the models give beside what was measured elsewhere."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=EXPERIMENTS, help="which one; field-story takes about a minute")
        parser.add_argument("--json", action="store_true", help="print the document instead of the findings")
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts that needs nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
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

"""`manage.py fit`: refit the phase model on the measurements that ship, and say how far it is from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from controlplane.physics import accuracy, split_accuracy
from controlplane.physics.commandline import PhysicsCommand
from controlplane.physics.fitting_errors import current_errors, misses, stack_errors
from controlplane.physics.refit import refit

DOCUMENT = "docs/model-accuracy.md"
CURRENT_MISS = 0.05
STACK_MISS = 0.15


class Command(PhysicsCommand):
    help = (
        "Refit the coefficients of the phase model, print its errors on fitted and on held-out phases, and write "
        f"{DOCUMENT}. Coefficients that differ from core/gpus.py are named; change them there and run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; fail if code or document are out of date")
        parser.add_argument("--json", action="store_true", help="print coefficients and errors as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        coefficients, current, stack = refit(), current_errors(), stack_errors()
        far = [("current", miss) for miss in misses("current", CURRENT_MISS)]
        far += [("2023", miss) for miss in misses("2023", STACK_MISS)]
        splits, split_figures = split_accuracy.section()
        text = accuracy.document(coefficients, current, stack, far, [splits])
        differing = [each.name for each in coefficients if not each.same]
        path = Path(settings.BASE_DIR) / DOCUMENT
        if options["json"]:
            found = {
                "coefficients": [asdict(each) | {"same": each.same} for each in coefficients],
                "errors": {"current": [asdict(row) for row in current], "2023": [asdict(row) for row in stack]},
                "misses": [{"stack": name} | asdict(miss) for name, miss in far],
                "splits": split_figures,
            }
            self.stdout.write(json.dumps(found, indent=2))
        else:
            tables = (
                accuracy.coefficient_table(coefficients),
                accuracy.error_table(current),
                accuracy.error_table(stack),
                splits,
            )
            self.stdout.write("\n".join(tables))
        if options["check"]:
            _check(path, text, differing)
            return
        path.write_text(text, encoding="utf-8")
        if differing:
            self.stderr.write(f"core/gpus.py differs from the fit: {', '.join(differing)}")


def _check(path: Path, text: str, differing: list[str]) -> None:
    if differing:
        raise CommandError(f"core/gpus.py differs from the fit: {', '.join(differing)}; run `manage.py fit` and copy them")
    if not path.is_file() or not accuracy.same_text(path.read_text(encoding="utf-8"), text):
        raise CommandError(f"{DOCUMENT} is out of date; run `manage.py fit`")

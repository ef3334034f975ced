"""The recorded rows that the console is tested with are what telemetry promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from controlplane.telemetry import rows as live
from tests.console_rows import rows

CLASSES = {
    "fleet": live.FleetRow,
    "model": live.ModelRow,
    "engine": live.EngineLiveRow,
    "node": live.NodeLiveRow,
    "operation": live.OperationRow,
}
SCRIPTS = sorted(Path(__file__).resolve().parents[2].glob("static/js/*.js"))


@pytest.mark.parametrize("row", rows(0.0), ids=lambda row: row["id"])
def test_a_recorded_row_has_exactly_the_fields_of_its_class(row: dict[str, Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(CLASSES[row["type"]])
    assert adapter.dump_python(adapter.validate_python(row)).keys() == row.keys()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_writes_markup_or_inline_code(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", '"style"'):
        assert forbidden not in source

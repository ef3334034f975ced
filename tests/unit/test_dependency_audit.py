"""What the audit of dependencies makes of pip-audit's answers."""

from __future__ import annotations

import json
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / ".ci" / "audit"
WEAK = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
NONE = {"name": "a", "version": "1.0", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("answer", "told", "code", "words"),
    [
        ([NONE, SKIPPED], "", 0, "1 of 2 dependencies audited, 0 known"),
        ([{**NONE, "vulns": [WEAK]}], "", 1, "a 1.0: PYSEC-1, fixed in 2.0"),
        ([SKIPPED], "", 0, "no advisory service can be reached"),
        (None, "ServiceError: connection refused", 0, "no advisory service can be reached"),
        (None, "error: the lock file cannot be read", 1, ""),
    ],
)
def test_a_known_vulnerability_fails_and_an_unreachable_service_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, told: str, code: int, words: str
) -> None:
    loader = SourceFileLoader("ci_audit", str(FILE))
    spec = spec_from_loader("ci_audit", loader)
    assert spec is not None
    audit = module_from_spec(spec)
    loader.exec_module(audit)
    out = "" if answer is None else json.dumps({"dependencies": answer})
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, out, told))
    assert audit.main() == code
    assert words in capsys.readouterr().out

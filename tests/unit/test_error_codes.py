"""Every code of an error that clients may see is in the document for them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_codes_of_errors_are_documented() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "controlplane" / "router").glob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', source))
    document = (ROOT / "docs" / "openai-api.md").read_text()
    assert len(codes) > 15
    assert {code for code in codes if f"`{code}`" not in document} == set()

"""The console's sentences for reason codes are those of the core."""

from __future__ import annotations

import json
import re
from pathlib import Path

from controlplane.core.reasons import REASON_DOCS

SCRIPT = Path(__file__).resolve().parents[2] / "static" / "js" / "reasons.js"


def test_the_console_says_of_each_reason_what_the_core_says() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    said = {code: json.loads(words) for code, words in re.findall(r'^  (\w+): gettext\((".*")\),$', text, re.MULTILINE)}
    assert said == {reason.value: sentence for reason, sentence in REASON_DOCS.items()}
    changed = re.search(r"const CHANGED = \[(.*?)\]", text)
    assert changed and set(json.loads(f"[{changed[1]}]")) < set(said)

"""The benchmark of routing quality runs, on a small piece of a trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests" / "data" / "traces"


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "bench", "routing_quality", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=170, check=False)


def test_prefixes_are_found_and_engines_work_evenly() -> None:
    done = bench("--trace", str(TRACES / "mooncake_conversation.jsonl"), "--engines", "2", "--blocks", "4000")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[:24].strip(): line[24:].split() for line in done.stdout.splitlines()}
    hit = {name: float(rows[name][0].rstrip("%")) for name in ("round robin", "least-loaded", "twinpool", "infinite cache")}
    assert hit["round robin"] <= hit["twinpool"] <= hit["infinite cache"]
    assert "held" in done.stdout


def test_a_bad_trace_is_one_clear_line(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": "x"}\n')
    done = bench("--trace", str(trace))
    assert done.returncode == 1
    assert done.stderr.strip().startswith("t.jsonl line 1 is no Mooncake row")

"""How long a start of the demonstration takes, fresh and warm, how long its stop, and what memory it needs.

`manage.py bench stack_start`: uses a state folder of its own and free ports. Limits: 45 s, 20 s, 15 s, 1.2 GB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    state = Path(tempfile.mkdtemp(prefix="twinpool-bench-"))
    try:
        fresh_s = _seconds("up", "--detach", "--port", "0", "--router-port", "0", "--state", str(state))
        stop_s = _seconds("down", "--state", str(state))
        warm_s = _seconds("up", "--detach", "--state", str(state))
        time.sleep(20)  # memory after some traffic, not of a process that just began
        status = json.loads(_manage("status", "--json", "--state", str(state)))
        print(f"first start   {fresh_s:6.1f} s   (limit 45)")
        print(f"second start  {warm_s:6.1f} s   (limit 20)")
        print(f"stop          {stop_s:6.1f} s   (limit 15)")
        print(f"memory (PSS)  {status['pss_bytes'] / 1e6:6.0f} MB  (limit 1200, without engines)")
        print(f"engines (PSS) {status['engines_pss_bytes'] / 1e6:6.0f} MB in {status['engine_processes']} processes")
        print(f"load average of {os.cpu_count()} cores: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
        return int(fresh_s > 45 or warm_s > 20 or stop_s > 15 or status["pss_bytes"] > 1.2e9)
    finally:
        subprocess.run(
            [sys.executable, "manage.py", "down", "--state", str(state)], cwd=ROOT, capture_output=True, check=False
        )
        shutil.rmtree(state, ignore_errors=True)


def _seconds(*arguments: str) -> float:
    began = time.monotonic()
    _manage(*arguments)
    return time.monotonic() - began


def _manage(*arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())

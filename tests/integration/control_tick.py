"""One tick in a process of its own that is killed after LINES lines of the control package: `control_tick.py LINES`.

Exit code 9: killed; 0: the tick ended before that many lines. Prints how many lines ran.
"""

from __future__ import annotations

import os
import sys
import time
from types import FrameType
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.control import loop as loop_module  # noqa: E402

ran = 0
limit = int(sys.argv[1])


def trace(frame: FrameType, event: str, _: Any) -> Any:
    global ran
    if "/controlplane/control/" not in frame.f_code.co_filename:
        return None
    if event == "line":
        ran += 1
        if ran >= limit:
            os._exit(9)
    return trace


loop_module.LEASE_S = 0.1  # the killed tick's lease must not delay the test
loop = loop_module.Loop()
loop.link_since = time.time() - 60
sys.settrace(trace)
loop.run()
sys.settrace(None)
print(ran)

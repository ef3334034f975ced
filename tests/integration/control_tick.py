"""One tick in a process of its own that is killed when it enters a function for the Nth time: `control_tick FUNCTION N`.

Exit code 9: killed; 0: the tick ended without it.
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

function, countdown = sys.argv[1], int(sys.argv[2])


def trace(frame: FrameType, event: str, _: Any) -> None:
    global countdown
    if "/controlplane/control/" in frame.f_code.co_filename and frame.f_code.co_name == function:
        countdown -= 1
        if not countdown:
            os._exit(9)


loop_module.LEASE_S = 0.1  # the killed tick's lease must not delay the test
loop = loop_module.Loop()
loop.link_since = time.time() - 60
sys.settrace(trace)
loop.run()
sys.settrace(None)

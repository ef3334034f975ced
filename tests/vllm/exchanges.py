"""`python -m tests.vllm.exchanges STATE COUNT`: exchanges the roles of the two engines of the stack in STATE so often, one
after another, and prints as JSON how long each took: seconds from the commit to the operation's end, which is when every
router has acknowledged the table with the new roles."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from controlplane.proof.fleet import Fleet
from controlplane.stack.folder import StateFolder

PAUSE_S = 1.0
"""Requests that began under the old roles and under the new ones are open at the next exchange."""
LONGEST_S = 120.0


def main() -> None:
    Fleet(StateFolder(Path(sys.argv[1]))).adopt_environment()
    import django

    django.setup()
    from controlplane.control import actions
    from controlplane.control.actor import Actor
    from controlplane.core.lifecycle import ENDED
    from controlplane.fleet import models

    model = models.Model.objects.get()
    first, second = model.engines.order_by("number").values_list("id", flat=True)
    seconds = []
    for number in range(int(sys.argv[2])):
        operation = actions.exchange_roles(Actor.command_line(), model.name, first, second, reason=f"exchange {number + 1}")
        committed = time.monotonic()
        while operation.state not in ENDED:
            assert time.monotonic() - committed < LONGEST_S, f"exchange {number + 1} is still {operation.state}"
            time.sleep(0.005)
            operation.refresh_from_db(fields=["state", "outcome"])
        seconds.append(time.monotonic() - committed)
        assert operation.state == "done", operation.outcome
        time.sleep(PAUSE_S)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()

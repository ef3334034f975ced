"""`python -m workers --node NAME --state DIR --accelerators sim:8xh100-sxm|cpu:2|nvml --address HOST`: a node's agent."""

from __future__ import annotations

import sys

from workers.drivers import DRIVERS
from workers.main import main

if __name__ == "__main__":
    sys.exit(main(DRIVERS))

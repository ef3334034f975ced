"""The kinds of engine an agent can run."""

from __future__ import annotations

from collections.abc import Mapping

from workers.engines.base import Driver
from workers.engines.simulated import driver as simulated
from workers.engines.vllm import driver as vllm

DRIVERS: Mapping[str, Driver] = {each.kind: each for each in (simulated, vllm)}

"""A simulated engine: vLLM's HTTP, metrics and KV handoff on a performance model, one process per engine, no GPU.

`driver` builds its launch; `python -m workers.engines.simulated --spec FILE` is the process.
"""

from workers.engines.simulated.driver import driver

__all__ = ["driver"]

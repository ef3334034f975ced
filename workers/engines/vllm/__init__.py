"""Real vLLM engines: `driver` builds their launch, `environment` finds the interpreter that runs them."""

from workers.engines.vllm.driver import driver

__all__ = ["driver"]

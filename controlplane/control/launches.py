"""What a model's row launches. Reads only."""

from __future__ import annotations

from controlplane.core.launch import Launch
from controlplane.fleet import models


def launch_of(model: models.Model, tensor_parallel: int, pipeline_parallel: int = 1) -> Launch:
    """As `model` is desired now, for a pool of these degrees."""
    return Launch(
        source=model.source,
        kind=model.engine_kind,
        connector=model.connector,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        kv_lease_s=model.kv_lease_s,
        args=model.engine_args,
        config=model.config,
        number=model.launch_number,
    )

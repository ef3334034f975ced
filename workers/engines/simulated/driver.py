"""Builds the process of a simulated engine from a spec. Only builds: writes the spec into `place.folder`, starts nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from controlplane.common.files import write_private
from controlplane.core.codec import encode
from controlplane.core.engine_args import ArgumentRefused, clean_env
from controlplane.core.names import ENV_ENGINE_KEY
from controlplane.core.protocol import EngineSpec
from workers.engines.base import Launch, Place, SpecRefused
from workers.engines.simulated.gang import ENV_GANG_KEY
from workers.engines.simulated.settings import settings_of

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 60.0


class SimulatedDriver:
    """See workers.engines.base.Driver."""

    kind = "simulated"

    def launch(self, spec: EngineSpec, rank: int, place: Place) -> Launch:
        """The process for this rank. Raises SpecRefused for a model that does not fit, unknown arguments and the like."""
        settings_of(spec, rank, place.host, place.port, place.side_port)
        try:
            clean_env(spec.env)  # secrets have no use here, but a bad name is refused as everywhere
        except ArgumentRefused as problem:
            raise SpecRefused(str(problem)) from problem
        document = {
            "spec": encode(spec),
            "rank": rank,
            "host": place.host,
            "port": place.port,
            "side_port": place.side_port,
            "gpus": list(spec.ranks[rank].gpus),
        }
        path = place.folder / "spec.json"
        write_private(path, json.dumps(document).encode())
        return Launch(
            argv=(sys.executable, "-m", "workers.engines.simulated", "--spec", str(path)),
            env={
                ENV_ENGINE_KEY: place.engine_key,
                **({ENV_GANG_KEY: place.gang_key.hex()} if place.gang_key else {}),
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                "MALLOC_ARENA_MAX": "1",
                "MALLOC_TRIM_THRESHOLD_": "131072",
            },
            start_timeout_s=START_TIMEOUT_S,
        )


driver = SimulatedDriver()

"""The real agent with one more driver: `python -m workers` whose simulated engines are tests/integration/agent_engine.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from controlplane.core.protocol import EngineSpec
from workers.engines.base import Launch, Place, SpecRefused
from workers.main import main


class TestDriver:
    kind = "simulated"

    def launch(self, spec: EngineSpec, rank: int, place: Place) -> Launch:
        if spec.args.get("refuse"):
            raise SpecRefused("the engine environment is missing: run manage.py engine-env")
        options = {**spec.args, "model": spec.model, "host": place.host, "port": place.port, "gpus": spec.ranks[rank].gpus}
        argv = (sys.executable, str(Path(__file__).with_name("agent_engine.py")), json.dumps(options))
        timeout_s = float(spec.args.get("start_timeout_s", 20.0))
        return Launch(argv, {"VLLM_API_KEY": place.engine_key, **place.secrets}, start_timeout_s=timeout_s)


if __name__ == "__main__":
    sys.exit(main({"simulated": TestDriver()}))

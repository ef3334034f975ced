"""How an engine is told to move KV: the options of the two connectors that Twinpool launches vLLM with. Pure.

Every engine of a model whose connector is not `none` can hand off in both directions: roles change without a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from controlplane.core.protocol import EngineSpec
from workers.engines.base import Place, SpecRefused

Value = bool | int | float | str


def transfer_options(spec: EngineSpec, place: Place, args: Mapping[str, Value], on_cpu: bool) -> dict[str, Value]:
    """Options for the spec's connector; none for `none`. Raises SpecRefused when the connector cannot work so."""
    if spec.connector == "none":
        return {}
    if spec.connector == "example":
        return _example(spec, place, args)
    return {"kv_transfer_config": _nixl(spec, on_cpu)}


def _nixl(spec: EngineSpec, on_cpu: bool) -> str:
    if spec.kv_lease_s < 6 or spec.kv_lease_s != int(spec.kv_lease_s):
        # vLLM takes whole seconds and renews the lease of waiting requests every sixth of it.
        raise SpecRefused(f"the KV lease must be a whole number of seconds, at least 6, got {spec.kv_lease_s:g}")
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": int(spec.kv_lease_s)},
    }
    if on_cpu:
        config["kv_buffer_device"] = "cpu"
    return json.dumps(config, sort_keys=True)


def _example(spec: EngineSpec, place: Place, args: Mapping[str, Value]) -> dict[str, Value]:
    """A shared folder (plugins/twinpool_folder_connector.py, on vLLM's ExampleConnector). It saves a prompt's blocks in its
    first step, so chunking is off and a step always holds a whole prompt."""
    if spec.tensor_parallel * spec.pipeline_parallel > 1:
        raise SpecRefused("the example connector serves engines on one accelerator only: use nixl, or parallelism 1")
    longest = args.get("max_model_len")
    if not isinstance(longest, int):
        raise SpecRefused("the example connector needs the engine argument 'max_model_len', so that no prompt is split")
    if args.get("enable_chunked_prefill"):
        raise SpecRefused("the example connector cannot save a chunked prompt: leave 'enable_chunked_prefill' out")
    budget = args.get("max_num_batched_tokens", longest)
    config = {
        "kv_connector": "FolderConnector",
        "kv_connector_module_path": "twinpool_folder_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"shared_storage_path": str(place.shared)},
    }
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(int(budget), longest),
        "kv_transfer_config": json.dumps(config, sort_keys=True),
    }

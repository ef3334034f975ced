"""What makes the KV cache of two engines exchangeable. Pure."""

from __future__ import annotations

import hashlib
import json

from controlplane.core.protocol import EngineSpec
from workers.metrics import info_labels, label_of


def compat(spec: EngineSpec, version: str, metrics_page: bytes) -> str:
    """A hash that is equal for engines whose KV cache one can hand to the other: engine version, model source and revision,
    KV dtype and layout, block size, connector. What the engine says of itself (vllm:cache_config_info) counts before what
    it was asked for. Tensor parallelism is left out: NIXL pairs engines of different degrees."""
    told = info_labels(metrics_page, b"vllm:cache_config_info")

    def figure(label: bytes, argument: str, default: str) -> str:
        value = label_of(told, label) if told else None
        return value if value and value != "None" else str(spec.args.get(argument, default))

    facts = {
        "kind": spec.kind,
        "version": version,
        "source": spec.source,
        "revision": str(spec.args.get("revision", "")),
        "dtype": str(spec.args.get("dtype", "auto")),
        "kv_dtype": figure(b"cache_dtype", "kv_cache_dtype", "auto"),
        "kv_layout": figure(b"kv_cache_layout", "kv_cache_layout", ""),
        "block_size": figure(b"block_size", "block_size", ""),
        "connector": spec.connector,
    }
    if spec.pipeline_parallel > 1:  # nobody has shown that engines of other stages read this KV
        facts["pipeline_parallel"] = str(spec.pipeline_parallel)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

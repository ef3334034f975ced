"""The fleets that `up` can start with: which nodes, which models, which pools. Pure data.

A scene says only what is desired; `manage.py seed_fleet` writes it once, `up` starts an agent per node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol import Connector, EngineKind, Mode, Role


@dataclass(frozen=True)
class SceneNode:
    """A node that `up` runs an agent for on this machine. `accelerators`: the agent's option, e.g. `sim:8xh100-sxm`."""

    name: str
    accelerators: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScenePool:
    role: Role
    engines: int
    tensor_parallel: int = 1


@dataclass(frozen=True)
class SceneModel:
    """`config` names one of `physics/model_configs/` (without .json); `source` is what the engine loads, with `{state}`
    replaced by the state folder's absolute path. `tiny` says that `up` first makes the tiny real model at `source`."""

    name: str
    source: str
    config: str
    engine_kind: EngineKind
    mode: Mode
    connector: Connector
    pools: tuple[ScenePool, ...]
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    slo_ttft_ms: float = 2000.0
    slo_itl_ms: float = 50.0
    tiny: bool = False


@dataclass(frozen=True)
class SceneTraffic:
    """What clients send to all models of a scene together. 0 tokens: lengths as in a trace of real conversations."""

    requests_per_s: float = 1.0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    by_default: bool = False
    """Whether it flows unless the operator says otherwise."""


@dataclass(frozen=True)
class Scene:
    nodes: tuple[SceneNode, ...] = ()
    models: tuple[SceneModel, ...] = ()
    traffic: SceneTraffic = SceneTraffic()


_DEMO = Scene(
    nodes=tuple(SceneNode(name, "sim:8xh100-sxm") for name in ("n1", "n2", "n3")),
    models=(
        SceneModel(
            name="llama-3.1-70b",
            source="meta-llama/Llama-3.1-70B-Instruct",
            config="llama-3.1-70b",
            engine_kind="simulated",
            mode="disaggregated",
            connector="nixl",
            pools=(ScenePool("prefill", 2, tensor_parallel=4), ScenePool("decode", 2, tensor_parallel=4)),
            engine_args={"max_model_len": 32768, "max_num_seqs": 128},
            slo_ttft_ms=1500.0,
            slo_itl_ms=50.0,
        ),
        SceneModel(
            name="qwen3-8b",
            source="Qwen/Qwen3-8B",
            config="qwen3-8b",
            engine_kind="simulated",
            mode="monolithic",
            connector="nixl",
            pools=(ScenePool("mixed", 4),),
            engine_args={"max_model_len": 32768, "max_num_seqs": 128},
            slo_ttft_ms=800.0,
            slo_itl_ms=40.0,
        ),
    ),
    traffic=SceneTraffic(by_default=True),
)

_FIELD = Scene(
    nodes=tuple(SceneNode(f"n{number}", "sim:8xh100-sxm") for number in range(1, 9)),
    models=(
        SceneModel(
            name="llama-3.1-70b",
            source="meta-llama/Llama-3.1-70B-Instruct",
            config="llama-3.1-70b",
            engine_kind="simulated",
            mode="monolithic",
            connector="nixl",
            pools=(ScenePool("mixed", 16, tensor_parallel=4),),
            engine_args={"max_model_len": 32768, "max_num_seqs": 128},
            slo_ttft_ms=1500.0,
            slo_itl_ms=50.0,
        ),
    ),
    traffic=SceneTraffic(3.0, prompt_tokens=4096, answer_tokens=300, by_default=True),
)
"""The fleet this product began with: whole requests on 64 GPUs, before they are split into prefill and decode."""

_PROOF = Scene(
    nodes=(SceneNode("n1", "sim:4xh100-sxm"), SceneNode("n2", "sim:4xh100-sxm")),
    models=(
        SceneModel(
            name="qwen3-8b",
            source="Qwen/Qwen3-8B",
            config="qwen3-8b",
            engine_kind="simulated",
            mode="disaggregated",
            connector="nixl",
            pools=(ScenePool("prefill", 3), ScenePool("decode", 3)),
            engine_args={"max_model_len": 8192, "max_num_seqs": 64, "speed": 0.25},
        ),
    ),
)
"""What `prove-rebalance` starts: small, slow enough that streams are open while pools change, and with two GPUs free."""

_SHIFT = Scene(
    nodes=(SceneNode("n1", "sim:3xl4"), SceneNode("n2", "sim:3xl4")),
    models=(
        SceneModel(
            name="llama-3.1-8b",
            source="meta-llama/Llama-3.1-8B-Instruct",
            config="llama-3.1-8b",
            engine_kind="simulated",
            mode="disaggregated",
            connector="nixl",
            pools=(ScenePool("prefill", 4), ScenePool("decode", 2)),
            engine_args={"max_model_len": 8192, "max_num_seqs": 8},
            slo_ttft_ms=4000.0,
            slo_itl_ms=300.0,
        ),
    ),
)
"""What `prove-planner` starts: GPUs so slow that a few requests a second fill them, none spare, split for long prompts."""

_VLLM = Scene(
    nodes=(SceneNode("n1", "cpu:2"),),
    models=(
        SceneModel(
            name="tiny-llama",
            source="{state}/models/tiny-llama",
            config="tiny-llama",
            engine_kind="vllm",
            mode="disaggregated",
            connector="nixl",
            pools=(ScenePool("prefill", 1), ScenePool("decode", 1)),
            engine_args={
                "block_size": 32,
                "dtype": "float32",
                "enforce_eager": True,
                "kv_cache_memory_bytes": 64 << 20,
                "max_model_len": 2048,
                "max_num_seqs": 16,
            },
            slo_ttft_ms=5000.0,
            slo_itl_ms=500.0,
            tiny=True,
        ),
    ),
)

SCENES: Mapping[str, Scene] = {
    "demo": _DEMO,
    "field": _FIELD,
    "proof": _PROOF,
    "shift": _SHIFT,
    "vllm": _VLLM,
    "none": Scene(),
}

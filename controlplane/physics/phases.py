"""One phase of a model on its GPUs, as a document for people and programs: command, API and pages call the same function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core import kvsize
from controlplane.core.gpus import STACKS, gpu
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel, StepCost
from controlplane.core.shapes import Shape
from controlplane.physics import checks

MAX_TOKENS = 10_000_000
MAX_BATCH = 100_000
MAX_GPUS = 1024
WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "bf16": {"quantization_config": None, "torch_dtype": "bfloat16"},
    "fp16": {"quantization_config": None, "torch_dtype": "float16"},
    "fp8": {"quantization_config": {"quant_method": "fp8"}},
}
"""Fields of a config.json that make a checkpoint of each type; auto: those that it has."""
MEMORY_UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes unless told otherwise."""


@dataclass(frozen=True)
class Question:
    """`tokens` are the new ones of each prompt in a prefill, the context of each sequence in a decode; `past` are tokens of
    each prompt that are cached already. Types "auto": as the config says."""

    config: Mapping[str, Any]
    gpu: str
    tensor_parallel: int
    prefill: bool
    tokens: int
    batch: int
    past: int = 0
    weights: str = "auto"
    kv_dtype: str = "auto"
    stack: str = "current"


def phase_document(question: Question) -> dict[str, Any]:
    """The step's time and activities, and what they rest on. Shares 0..1; sizes in decimal GB.

    `tensor_activity` and `dram_activity` are averages over the step, `tensor_peak` is the tensor activity inside matrix
    kernels, `mfu` useful FLOPs / nominal peak. `kv_missing_gb` is what the KV cache of these sequences lacks on each GPU,
    0 where it fits: the time is then what a GPU with more memory would take.

    Raises ConfigRefused, UnknownGpu, ForecastRefused for bad values, and DoesNotFit for a tensor-parallel degree that is not
    possible or a model that does not fit beside the activations of the step, with the GB that are missing.
    """
    _check(question)
    model = PhaseModel(
        shape=stored_shape(question.config, question.weights),
        gpu=gpu(question.gpu),
        tensor_parallel=question.tensor_parallel,
        kv_dtype=question.kv_dtype,
        stack=STACKS[question.stack],
    )
    new = question.tokens * question.batch if question.prefill else question.batch
    capacity = model.kv_capacity_tokens(MEMORY_UTILIZATION, new)
    token_bytes = model.kv_token_bytes_per_gpu
    held_bytes = (question.tokens + question.past) * question.batch * token_bytes
    held_bytes += kvsize.state_bytes_per_request_per_gpu(model.shape, question.tensor_parallel) * question.batch
    return {
        "model": model.shape.model_type,
        "gpu": question.gpu,
        "tensor_parallel": question.tensor_parallel,
        "stack": question.stack,
        "phase": "prefill" if question.prefill else "decode",
        "tokens": question.tokens,
        "past": question.past,
        "batch": question.batch,
        **_costs(model, _step(model, question)),
        "kv_capacity_tokens": capacity,
        "kv_missing_gb": max(0, held_bytes - capacity * token_bytes) / 1e9,
        "basis": model.basis,
        "guesses": list(model.guesses),
    }


def _check(question: Question) -> None:
    checks.one_of("stack", question.stack, tuple(STACKS))
    checks.whole("tp", question.tensor_parallel, 1, MAX_GPUS)
    checks.whole("batch", question.batch, 1, MAX_BATCH)
    checks.whole("tokens" if question.prefill else "context", question.tokens, 1, MAX_TOKENS)
    checks.whole("past", question.past, 0, MAX_TOKENS)


def stored_shape(config: Mapping[str, Any], weights: str) -> Shape:
    """The config's shape, its weights stored as one of WEIGHTS. Raises ConfigRefused, ForecastRefused."""
    checks.one_of("dtype", weights, tuple(WEIGHTS))
    stored = WEIGHTS[weights]
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        return read_shape({**config, "text_config": {**inner, **stored}})
    return read_shape({**config, **stored})


def _step(model: PhaseModel, question: Question) -> StepCost:
    if question.prefill:
        return model.prefill(question.tokens, question.past, question.batch)
    return model.decode(question.batch, question.tokens)


def _costs(model: PhaseModel, cost: StepCost) -> dict[str, float]:
    return {
        "milliseconds": cost.seconds * 1e3,
        "tensor_activity": cost.tensor,
        "tensor_peak": cost.tensor_peak,
        "dram_activity": cost.dram,
        "dram_gb": cost.dram * model.gpu.dram_bytes * cost.seconds / 1e9,
        "mfu": cost.mfu,
    }

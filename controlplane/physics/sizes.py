"""A model's sizes as a document for people and programs: command, API and pages call the same function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.core import kvsize
from controlplane.core.forecast import ForecastRefused
from controlplane.core.layout import MAX_TENSOR_PARALLEL
from controlplane.core.modelconfig import read_shape
from controlplane.core.shapes import Attention, Shape
from controlplane.physics import checks

DEFAULT_TOKENS = 4096


def size_document(
    config: Mapping[str, Any], dtype: str | None = None, tokens: int = DEFAULT_TOKENS, tensor_parallel: int | None = None
) -> dict[str, Any]:
    """Sizes in bytes of the whole engine; with `tensor_parallel` also of one GPU, under "per_gpu".

    `bytes` is what a request of `tokens` needs (windows cap), beyond the windows bytes_per_token x tokens +
    fixed_bytes_per_request; `reserved_bytes` is what an engine sets aside when every layer keeps every token, `_hybrid` when
    vLLM frees what windows have passed; the keys of an indexer are in the reserved and transferred bytes only.
    `flops_per_token` is without attention. `dtype`: of the KV cache.

    Raises ConfigRefused for the config or the data type, ForecastRefused for counts that cannot be.
    """
    checks.whole("tokens", tokens, 1, kvsize.MAX_TOKENS)
    shape = read_shape(config)
    document = {
        "model": shape.model_type,
        "dtype": dtype or "auto",
        "tokens": tokens,
        "bytes_per_token": kvsize.kv_bytes_of_shape(shape, dtype),
        "fixed_bytes_per_request": kvsize.fixed_bytes_of_shape(shape, dtype),
        "bytes": kvsize.ideal_bytes(shape, dtype, tokens),
        "reserved_bytes_per_token": kvsize.reserved_bytes_per_token(shape, dtype),
        "reserved_bytes": kvsize.reserved_bytes(shape, dtype, tokens),
        "reserved_bytes_hybrid": kvsize.reserved_bytes_hybrid(shape, dtype, tokens),
        "indexer_bytes_per_token": kvsize.indexer_bytes_per_token(shape),
        "transfer_bytes": kvsize.transfer_bytes(shape, dtype, tokens),
        "layers": [_layers(shape, group, dtype) for group in shape.attention],
        "weights_bytes": kvsize.weights_bytes(shape),
        "parameters": kvsize.parameters(shape).total,
        "active_parameters": kvsize.active_parameters(shape),
        "flops_per_token": round(kvsize.flops_per_token(shape)),
    }
    if tensor_parallel is not None:
        document["per_gpu"] = _per_gpu(shape, dtype, tokens, tensor_parallel)
    return document


def _layers(shape: Shape, group: Attention, dtype: str | None) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "layers": group.layers,
        "caching_layers": group.cached_layers,
        "window_tokens": group.window,
        "bytes_per_token": kvsize.token_bytes(shape, group, dtype),
        "state_bytes": kvsize.state_bytes(shape, group),
    }


def _per_gpu(shape: Shape, dtype: str | None, tokens: int, tensor_parallel: int) -> dict[str, Any]:
    checks.whole("tp", tensor_parallel, 1, MAX_TENSOR_PARALLEL)
    if not shape.splits_over(tensor_parallel):
        raise ForecastRefused(
            f"the heads of {shape.model_type} cannot be split over tp {tensor_parallel}; "
            f"degrees that can: {', '.join(map(str, shape.degrees(MAX_TENSOR_PARALLEL)))}"
        )
    return {
        "tensor_parallel": tensor_parallel,
        "bytes_per_token": kvsize.kv_bytes_per_token_per_gpu(shape, tensor_parallel, dtype),
        "bytes": kvsize.ideal_bytes(shape, dtype, tokens, tensor_parallel),
        "reserved_bytes_per_token": kvsize.reserved_bytes_per_token_per_gpu(shape, tensor_parallel, dtype),
        "state_bytes_per_request": kvsize.state_bytes_per_request_per_gpu(shape, tensor_parallel),
        "weights_bytes": -(-kvsize.weights_bytes(shape) // tensor_parallel),
    }

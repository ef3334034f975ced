"""A model as somebody asks for it, and everything that can be wrong with it. Reads nothing, writes nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from controlplane.core.engine_args import ALLOWED, clean_args
from controlplane.core.kvsize import KvSize, transfer_size
from controlplane.core.modelconfig import ConfigRefused, Shape, read_shape
from controlplane.core.protocol import ROLES_OF_MODE, Connector, Mode, Role

NAME = re.compile(r"(?=.{1,128}$)[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
MAX_CONFIG_BYTES = 1 << 20
MAX_ENGINES = 1024
MAX_TENSOR_PARALLEL = 64
MAX_PIPELINE_PARALLEL = 16
MAX_CONTEXT = 1 << 24
"""Tokens, as engine argument max_model_len."""
MAX_SLO_MS = 10_000_000


@dataclass(frozen=True)
class NewPool:
    role: str
    engines: int = 0
    tensor_parallel: int = 1
    gpu_kinds: tuple[str, ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    pipeline_parallel: int = 1
    """Stages of each engine, each on `tensor_parallel` GPUs of one node."""


@dataclass(frozen=True)
class NewModel:
    """`config`: the model's Hugging Face config.json, as text or parsed. Pools that the mode needs and that are not named
    are made with no engines and the parallel degrees of the first one named."""

    name: str
    source: str
    config: str | Mapping[str, Any]
    engine_kind: str = "vllm"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "monolithic"
    connector: str = "nixl"
    pools: tuple[NewPool, ...] = ()
    aliases: tuple[str, ...] = ()
    kv_lease_s: float = 30.0
    slo_ttft_ms: float = 2000.0
    slo_itl_ms: float = 50.0

    def all_pools(self) -> tuple[NewPool, ...]:
        named = {pool.role for pool in self.pools}
        first = self.pools[0] if self.pools else NewPool("mixed")
        missing = [role for role in ROLES_OF_MODE.get(self.mode, ()) if role not in named]
        return self.pools + tuple(
            NewPool(role, tensor_parallel=first.tensor_parallel, pipeline_parallel=first.pipeline_parallel)
            for role in missing
        )


@dataclass(frozen=True)
class Checked:
    """What the checks found out on their way."""

    config: dict[str, Any]
    engine_args: dict[str, Any]
    shape: Shape
    kv: KvSize

    @property
    def max_model_len(self) -> int:
        """0: not known, the engine decides."""
        return int(self.engine_args.get("max_model_len") or self.shape.max_positions)

    def columns(self) -> dict[str, int]:
        """What a model's row keeps of it."""
        return {
            "block_size": self.engine_args.get("block_size", 16),
            "kv_bytes_per_token": self.kv.per_token,
            "kv_fixed_bytes": self.kv.fixed,
            "kv_window_bytes_per_token": self.kv.window_per_token,
            "kv_window_tokens": self.kv.window_tokens,
            "max_model_len": self.max_model_len,
        }


def check(new: NewModel) -> tuple[Checked | None, tuple[str, ...]]:
    """(checked, reasons): reasons name every problem found, each with its remedy; checked is None if there is any."""
    reasons = [*_plain_problems(new), *_pool_problems(new)]
    config, args, shape, kv = None, None, None, KvSize(0)
    try:
        config = parse_config(new.config)
    except ValueError as error:
        reasons.append(str(error))
    try:
        args = clean_args(new.engine_kind, new.engine_args)
    except ValueError as error:
        reasons.append(str(error))
    if config is not None:
        try:
            shape = read_shape(config)
            kv = transfer_size(shape, _kv_dtype(new.engine_args, shape))
            reasons += (*_split_problems(new, shape), *_length_problems(shape))
        except ConfigRefused as error:
            reasons.append(str(error))
    if reasons or config is None or args is None or shape is None:
        return None, tuple(reasons)
    return Checked(config, dict(args), shape, kv), ()


def _kv_dtype(args: Mapping[str, Any], shape: Shape) -> str | None:
    """The type of the KV cache: as told, else as the checkpoint is quantised, else that of the activations."""
    own, activations = args.get("kv_cache_dtype"), args.get("dtype")
    if own in (None, "auto") and shape.cache_bytes == shape.activation_bytes:
        own = activations
    return None if own in (None, "auto") else str(own)


def parse_config(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """config.json as an object. Raises ValueError saying where it is no JSON.

    Infinity, which transformers writes for some limits (Nemotron-H) and JSON does not know, becomes null.
    """
    if isinstance(config, str):
        if len(config) > MAX_CONFIG_BYTES:
            raise ValueError(f"model config: longer than {MAX_CONFIG_BYTES} bytes; give the model's config.json alone")
        try:
            config = json.loads(config, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"model config: is no JSON ({error}); give the content of the model's config.json") from error
    if not isinstance(config, Mapping):
        raise ValueError(f"model config: must be a JSON object as in config.json, got {type(config).__name__}")
    try:
        finite: dict[str, Any] = _without_infinity(config)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"model config: cannot be stored as JSON ({error})") from error
    if "\\u0000" in text:
        raise ValueError("model config: holds a NUL character; give the content of the model's config.json")
    return finite


def _no_constant(name: str) -> None:
    if name == "NaN":
        raise ValueError(f"{name} is not JSON")


def _without_infinity(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_infinity(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _plain_problems(new: NewModel) -> Iterator[str]:
    for name in (new.name, *new.aliases):
        if not NAME.fullmatch(name):
            yield (
                f"name {name!r:.140}: letters, digits, '.', '_' and '-', at most 128, in parts divided by single '/' that "
                "start with a letter or digit"
            )
    if not new.source or len(new.source) > 512 or new.source.startswith("-") or not new.source.isprintable():
        yield "source: give a model id or an absolute path, at most 512 printable characters"
    if new.engine_kind not in ALLOWED:
        yield f"engine kind {new.engine_kind!r:.40}: one of {', '.join(sorted(ALLOWED))}"
    if new.mode not in get_args(Mode):
        yield f"mode {new.mode!r:.40}: one of {', '.join(get_args(Mode))}"
    if new.connector not in get_args(Connector):
        yield f"connector {new.connector!r:.40}: one of {', '.join(get_args(Connector))}"
    if new.mode in ("disaggregated", "conditional") and new.connector == "none":
        yield f"mode {new.mode} hands KV over: give a connector (nixl or example)"
    if not 1 <= new.kv_lease_s <= 3600:
        yield "kv_lease_s: 1 to 3600 seconds"
    if not all(1 <= target_ms <= MAX_SLO_MS for target_ms in (new.slo_ttft_ms, new.slo_itl_ms)):
        yield f"SLO targets: 1 to {MAX_SLO_MS} milliseconds"


def _split_problems(new: NewModel, shape: Shape) -> Iterator[str]:
    """Tensor parallelism gives each GPU the same number of heads, and whole KV heads or copies of one."""
    fitting = shape.degrees(MAX_TENSOR_PARALLEL)
    for pool in new.pools:
        if shape.layers < pool.pipeline_parallel <= MAX_PIPELINE_PARALLEL:
            yield f"pool {pool.role}: {shape.layers} layers cannot be divided into {pool.pipeline_parallel} pipeline stages"
        if 1 <= pool.tensor_parallel <= MAX_TENSOR_PARALLEL and pool.tensor_parallel not in fitting:
            yield (
                f"pool {pool.role}: {shape.heads} attention heads ({shape.kv_heads} KV heads) cannot be split over "
                f"{pool.tensor_parallel} GPUs; degrees that can: {', '.join(map(str, fitting))}"
            )


def _length_problems(shape: Shape) -> Iterator[str]:
    if shape.max_positions > MAX_CONTEXT:
        yield f"model config: max_position_embeddings must be at most {MAX_CONTEXT}"


def _pool_problems(new: NewModel) -> Iterator[str]:
    roles = [pool.role for pool in new.pools]
    if len(set(roles)) != len(roles):
        yield "pools: one per role"
    for pool in new.pools:
        if pool.role not in get_args(Role):
            yield f"pool {pool.role!r:.40}: role is one of {', '.join(get_args(Role))}"
        if not 0 <= pool.engines <= MAX_ENGINES:
            yield f"pool {pool.role}: 0 to {MAX_ENGINES} engines"
        if not 1 <= pool.tensor_parallel <= MAX_TENSOR_PARALLEL:
            yield f"pool {pool.role}: a tensor-parallel degree from 1 to {MAX_TENSOR_PARALLEL}"
        if not 1 <= pool.pipeline_parallel <= MAX_PIPELINE_PARALLEL:
            yield f"pool {pool.role}: 1 to {MAX_PIPELINE_PARALLEL} pipeline stages"

"""What one simulated engine is: read from the JSON document that its driver wrote, checked whole before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.common.prefixhash import SEED, PrefixHasher
from controlplane.core import kvsize
from controlplane.core.batching import Limits
from controlplane.core.codec import WrongShape, decode
from controlplane.core.engine_args import ArgumentRefused, clean_args
from controlplane.core.gpus import UnknownGpu, gpu
from controlplane.core.modelconfig import ConfigRefused, read_shape
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.core.pipeline import Pipeline
from controlplane.core.protocol import EngineSpec
from workers.engines.base import SpecRefused
from workers.engines.kvevents import kv_events_config

VERSION = "0.32.0+twinpool.simulated"
"""What /version tells: the vLLM whose HTTP, metrics and handoff are spoken."""

_HONOURED = frozenset(
    {
        "block_size",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "long_prefill_token_threshold",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "prefix_caching_hash_algo",
        "speed",
    }
)


@dataclass(frozen=True)
class EventsConfig:
    """Where KV events go: vLLM's kv_events_config. `listen` tells whether the endpoint is bound or connected to."""

    endpoint: str
    listen: bool
    topic: str
    replay_endpoint: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000


@dataclass(frozen=True)
class Settings:
    """`speed` divides every simulated duration; leases stay in real seconds, because others count on them."""

    engine: str
    model: str
    host: str
    port: int
    side_port: int
    gpus: tuple[str, ...]
    perf: PhaseModel
    limits: Limits
    max_model_len: int
    gpu_memory_utilization: float
    kv_lease_s: float
    network_gbps: float
    handoff: bool
    """Whether KV may be handed over: connector nixl. Without it, kv_transfer_params are ignored, as vLLM does."""
    speed: float
    hash_algorithm: str = "sha256"
    hash_seed: str = SEED
    """The process takes it from its environment, as vLLM does."""
    kv_events: EventsConfig | None = None
    pipeline: Pipeline | None = None
    """How `perf` runs in stages; None: in one."""
    rank: int = 0
    ranks: int = 1
    leader: str = ""
    """Ranks beyond 0: host:port where rank 0 is joined."""

    @property
    def steps(self) -> PhaseModel | Pipeline:
        """What a step takes."""
        return self.pipeline or self.perf

    def pull_bytes(self, blocks: int) -> int:
        """What pulling this many blocks of a prompt's KV moves."""
        return kvsize.transfer_bytes(self.perf.shape, self.perf.kv_dtype, blocks * self.limits.block_size) if blocks else 0

    def hasher(self) -> PrefixHasher | None:
        """What names blocks; None without a prefix cache."""
        return PrefixHasher(self.hash_algorithm, self.hash_seed) if self.limits.prefix_caching else None

    @property
    def kv_dtype(self) -> str:
        return self.perf.kv_dtype or "auto"


def read_settings(document: Any) -> Settings:
    """Settings from {"spec": EngineSpec, "rank", "host", "port", "side_port"}. Raises SpecRefused with the remedy."""
    if not isinstance(document, Mapping):
        raise SpecRefused(f"the engine's document is a {type(document).__name__}, not an object")
    try:
        spec = decode(EngineSpec, document.get("spec"), "spec")
    except WrongShape as error:
        raise SpecRefused(str(error)) from error
    host, ports = document.get("host"), (document.get("port"), document.get("side_port"))
    if not isinstance(host, str) or not all(type(port) is int and 0 <= port < 65536 for port in ports):
        raise SpecRefused("the engine's document needs a host and two ports (0: a free one)")
    return settings_of(spec, document.get("rank", 0), host, *ports)  # type: ignore[arg-type]  # checked just above


def settings_of(spec: EngineSpec, rank: int, host: str, port: int, side_port: int) -> Settings:
    """Settings of a spec at a place. Raises SpecRefused."""
    _refuse_impossible(spec, rank)
    args = _arguments(spec)
    utilization = float(args.get("gpu_memory_utilization", 0.9))
    kv_dtype = args.get("kv_cache_dtype", "auto")
    try:
        shape = read_shape(spec.model_config)
        perf = PhaseModel(shape, gpu(spec.gpu_kind), spec.tensor_parallel, None if kv_dtype == "auto" else str(kv_dtype))
        batched = int(args.get("max_num_batched_tokens", 8192))
        given = args.get("kv_cache_memory_bytes")
        pipeline = Pipeline(perf, _links(spec, perf.gpu.link_bytes))
        token_bytes = pipeline.kv_token_bytes_per_gpu
        capacity = int(given) // token_bytes if given else pipeline.kv_capacity_tokens(utilization, batched)
    except (ConfigRefused, UnknownGpu, DoesNotFit, ValueError) as error:
        raise SpecRefused(f"{spec.id}: {error}") from error
    block = int(args.get("block_size", 16))
    limits = Limits(
        max_num_seqs=int(args.get("max_num_seqs", 256)),
        max_num_batched_tokens=batched,
        block_size=block,
        num_blocks=max(1, capacity // block),
        prefix_caching=bool(args.get("enable_prefix_caching", True)),
        long_prefill_token_threshold=int(args.get("long_prefill_token_threshold", 0)),
        chunked_prefill=bool(args.get("enable_chunked_prefill", True)),
    )
    longest = _max_model_len(args.get("max_model_len"), shape.max_positions, limits.num_blocks * block)
    if not limits.chunked_prefill and batched < longest:
        raise SpecRefused(
            f"without chunked prefill max_num_batched_tokens ({batched}) must not be below max_model_len ({longest}), as"
            " vLLM demands: raise the first or lower the second"
        )
    return Settings(
        engine=spec.id,
        model=spec.model,
        host=host,
        port=port,
        side_port=side_port,
        gpus=spec.ranks[rank].gpus,
        perf=perf,
        limits=limits,
        max_model_len=longest,
        gpu_memory_utilization=utilization,
        kv_lease_s=spec.kv_lease_s,
        network_gbps=spec.network_gbps,
        handoff=spec.connector == "nixl",
        speed=float(args.get("speed", 1.0)),
        hash_algorithm=str(args.get("prefix_caching_hash_algo", "sha256")),
        kv_events=_kv_events(spec, host),
        pipeline=pipeline if pipeline.stages > 1 else None,
        rank=rank,
        ranks=len(spec.ranks),
        leader=spec.leader,
    )


def _links(spec: EngineSpec, within: float) -> tuple[float, ...]:
    """Bytes per second from each stage to the next: the GPUs' own link within a node, the network between nodes."""
    between = spec.network_gbps * 1e9 / 8
    pairs = zip(spec.ranks, spec.ranks[1:], strict=False)
    return tuple(within if one.node == two.node else between for one, two in pairs)


def _kv_events(spec: EngineSpec, host: str) -> EventsConfig | None:
    """`*` in an address is the engine's own one: vLLM would listen on all of the node's."""
    config = kv_events_config(spec)
    if not config:
        return None
    endpoint, replay = str(config["endpoint"]), str(config.get("replay_endpoint", ""))
    own = f"[{host}]" if ":" in host else host
    return EventsConfig(
        endpoint=endpoint.replace("*", own),
        listen="*" in endpoint,
        topic=str(config["topic"]),
        replay_endpoint=replay.replace("*", own),
        buffer_steps=int(config.get("buffer_steps", 10_000)),
        hwm=int(config.get("hwm", 100_000)),
    )


def _arguments(spec: EngineSpec) -> dict[str, bool | int | float | str]:
    try:
        args = clean_args("simulated", spec.args)
    except ArgumentRefused as error:
        raise SpecRefused(str(error)) from error
    idle = sorted(set(args) - _HONOURED)
    if idle:
        raise SpecRefused(f"{', '.join(idle)}: without effect on a simulated engine; remove it from the model's arguments")
    return args


def _refuse_impossible(spec: EngineSpec, rank: int) -> None:
    if len(spec.ranks) != spec.pipeline_parallel or not 0 <= rank < len(spec.ranks):
        raise SpecRefused(
            f"{spec.id}: a simulated engine has one rank for each of its {spec.pipeline_parallel} pipeline stages, this is "
            f"rank {rank} of {len(spec.ranks)}"
        )
    if rank and not spec.leader:
        raise SpecRefused(f"{spec.id}: rank {rank} was not told where rank 0 is; start rank 0 first")
    for each in spec.ranks:
        if len(each.gpus) != spec.tensor_parallel:
            raise SpecRefused(f"{spec.id} needs {spec.tensor_parallel} GPUs and was given {len(each.gpus)}")
    if spec.connector == "example":
        raise SpecRefused(f"{spec.id}: simulated engines hand KV over with connector nixl; choose nixl or none")
    if not (spec.kv_lease_s > 0 and spec.network_gbps > 0):
        raise SpecRefused(f"{spec.id}: kv_lease_s and network_gbps must be positive")


def _max_model_len(asked: Any, positions: int, capacity: int) -> int:
    """As vLLM: what is asked for must fit the cache; what is not asked for is what the model and the cache allow."""
    longest = capacity - 1
    if asked is None:
        return max(1, min(positions or longest, longest))
    if int(asked) > longest:
        raise SpecRefused(f"max_model_len {asked} does not fit the {capacity} tokens of KV cache; lower it or use more GPUs")
    return int(asked)

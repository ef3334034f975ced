"""The arguments an operator may give to an engine: a closed list with types and bounds, per kind of engine. Pure.

Names are vLLM's option names with underscores (`max_model_len` for `--max-model-len`). What loads code, reads a path, opens
a port, changes authentication, writes prompts to a log or moves KV elsewhere is not on the list and never may be: those are
either set by Twinpool from typed fields, or are code on a node for whoever can edit a model.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ArgumentRefused(ValueError):
    """An engine argument is not on the list or has a bad value. `name` is the argument; the message says what is allowed."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"engine argument {name[:60]!r} {problem}")
        self.name, self.problem = name, problem


@dataclass(frozen=True)
class Flag:
    """On or off."""

    def check(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ArgumentRefused(name, f"must be true or false, got {value!r:.60}")
        return value


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, both included."""

    low: int
    high: int

    def check(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ArgumentRefused(name, f"must be a whole number from {self.low} to {self.high}, got {value!r:.60}")
        return value


@dataclass(frozen=True)
class Share:
    """A number within bounds, both included."""

    low: float
    high: float

    def check(self, name: str, value: Any) -> float:
        number = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
        if not number or not self.low <= value <= self.high:
            raise ArgumentRefused(name, f"must be a number from {self.low} to {self.high}, got {value!r:.60}")
        return float(value)


@dataclass(frozen=True)
class OneOf:
    """One of a few words or numbers."""

    choices: tuple[str | int, ...]

    def check(self, name: str, value: Any) -> str | int:
        for choice in self.choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise ArgumentRefused(name, f"must be one of {', '.join(map(str, self.choices))}, got {value!r:.60}")


@dataclass(frozen=True)
class Word:
    """A name that only looks something up: letters, digits, `.`, `_`, `-`; no path, no leading dash."""

    longest: int = 64

    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) > self.longest or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ArgumentRefused(
                name, f"must be a name of letters, digits, '.', '_' and '-', at most {self.longest} long, got {value!r:.60}"
            )
        return value


@dataclass(frozen=True)
class PrivateEndpoint:
    """tcp://ADDRESS:PORT with a private IP address, or tcp://*:PORT for "listen"."""

    def check(self, name: str, value: Any) -> str:
        match = (
            re.fullmatch(r"tcp://(\*|[0-9.]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", value) if isinstance(value, str) else None
        )
        if match is None or not 0 < int(match[2]) < 65536:
            raise ArgumentRefused(name, f"must be tcp://ADDRESS:PORT with an IP address or *, got {value!r:.60}")
        if match[1] != "*" and not _is_private(match[1].strip("[]")):
            raise ArgumentRefused(
                name,
                f"must be a private address (such as 10.0.0.5), because prompts can be read from what is sent, got {value}",
            )
        return match[0]


def _is_private(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return ip.is_private and not (ip.is_unspecified or ip.is_multicast)


Rule = Flag | Whole | Share | OneOf | Word | PrivateEndpoint

_SHARED: dict[str, Rule] = {
    "block_size": OneOf((8, 16, 32, 64, 128)),
    "dtype": OneOf(("auto", "bfloat16", "float16", "float32")),
    "enable_chunked_prefill": Flag(),
    "enable_prefix_caching": Flag(),
    "gpu_memory_utilization": Share(0.05, 0.98),
    "kv_cache_dtype": OneOf(("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")),
    "kv_cache_memory_bytes": Whole(1 << 20, 1 << 42),
    "long_prefill_token_threshold": Whole(0, 1 << 20),
    "max_model_len": Whole(16, 10_000_000),
    "max_num_batched_tokens": Whole(16, 1 << 20),
    "max_num_seqs": Whole(1, 4096),
    "prefix_caching_hash_algo": OneOf(("sha256", "sha256_cbor")),
    "scheduling_policy": OneOf(("fcfs", "priority")),
    "seed": Whole(0, (1 << 32) - 1),
}

ALLOWED: Mapping[str, Mapping[str, Rule]] = {
    "simulated": {**_SHARED, "speed": Share(0.01, 1000.0)},
    "vllm": {
        **_SHARED,
        "async_scheduling": Flag(),
        "disable_custom_all_reduce": Flag(),
        "enable_auto_tool_choice": Flag(),
        "enable_expert_parallel": Flag(),
        "enforce_eager": Flag(),
        "generation_config": OneOf(("auto", "vllm")),
        "load_format": OneOf(("auto", "safetensors", "dummy")),
        "max_logprobs": Whole(0, 1000),
        "quantization": OneOf(
            ("awq", "awq_marlin", "compressed-tensors", "fp8", "gptq", "gptq_marlin", "modelopt", "modelopt_fp4", "mxfp4")
        ),
        "reasoning_parser": Word(),
        "revision": Word(),
        "stream_interval": Whole(1, 64),
        "tool_call_parser": Word(),
    },
}

SET_BY_TWINPOOL = frozenset(
    {
        "api_key", "data_parallel_size", "host", "kv_events_config", "kv_transfer_config", "model",
        "pipeline_parallel_size", "port", "served_model_name", "shutdown_timeout", "tensor_parallel_size",
    }
)  # fmt: skip
"""Options that Twinpool sets from typed fields (model, connector, pools, the engine key)."""

KV_EVENTS: Mapping[str, Rule] = {
    "buffer_steps": Whole(1, 1_000_000),
    "enable_kv_cache_events": Flag(),
    "endpoint": PrivateEndpoint(),
    "hwm": Whole(1, 10_000_000),
    "max_queue_size": Whole(1, 10_000_000),
    "replay_endpoint": PrivateEndpoint(),
}
"""What an engine spec may say of its KV events (vLLM's kv_events_config). Publisher and topic are set by the drivers."""

ALLOWED_ENV = frozenset({"HF_TOKEN"})
"""Environment variables of an engine that may be filled from a node-side secret. Anything else could load code
(LD_PRELOAD, PYTHONPATH, VLLM_PLUGINS) or undo what the driver sets."""


def clean_args(kind: str, args: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """`args` checked against the list of `kind`, in order of name. Raises ArgumentRefused naming the first bad argument
    and what is allowed. Never coerces a wrong type."""
    rules = ALLOWED.get(kind)
    if rules is None:
        raise ValueError(f"engine kind {kind!r:.40} is unknown; kinds: {', '.join(sorted(ALLOWED))}")
    if not isinstance(args, Mapping):
        raise ArgumentRefused("(all)", "must come as an object of names and values")
    for name in args:
        if name not in rules:
            raise ArgumentRefused(str(name), _why_not(kind, str(name), rules))
    return {name: rules[name].check(name, args[name]) for name in sorted(args)}


def clean_kv_events(events: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The KV events of an engine spec, checked; {} if there shall be none. Raises ArgumentRefused. Events carry the token
    ids of prompts, so they go to private addresses only."""
    if not isinstance(events, Mapping):
        raise ArgumentRefused("kv_events", "must come as an object of names and values")
    for name in events:
        if name not in KV_EVENTS:
            raise ArgumentRefused(str(name), f"is no setting of KV events (there are: {', '.join(sorted(KV_EVENTS))})")
    cleaned = {name: KV_EVENTS[name].check(name, events[name]) for name in sorted(events)}
    if not cleaned or cleaned.get("enable_kv_cache_events") is False:
        return {}
    if "endpoint" not in cleaned:
        raise ArgumentRefused("endpoint", "is missing: KV events need an address to go to, tcp://ADDRESS:PORT")
    if cleaned["endpoint"] == cleaned.get("replay_endpoint"):
        raise ArgumentRefused("replay_endpoint", "must differ from the endpoint")
    return {**cleaned, "enable_kv_cache_events": True}


def clean_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variable name -> name of a node-side secret, checked. Raises ArgumentRefused."""
    for name in env:
        if name not in ALLOWED_ENV:
            raise ArgumentRefused(
                str(name), f"may not be set in an engine's environment; allowed: {', '.join(sorted(ALLOWED_ENV))}"
            )
    return {name: Word().check(name, env[name]) for name in sorted(env)}


def _why_not(kind: str, name: str, rules: Mapping[str, Rule]) -> str:
    plain = name.lstrip("-").replace("-", "_")
    if plain in SET_BY_TWINPOOL:
        return "is set by Twinpool itself and cannot be given"
    near = difflib.get_close_matches(plain, rules, n=1, cutoff=0.8)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"is not allowed for {kind} engines{hint} (allowed: {', '.join(sorted(rules))})"

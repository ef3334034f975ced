"""How a checkpoint's `quantization_config` stores the weights of each module. Pure; refuses methods it cannot read.

Bytes per weight include the scales (and zero points) of weight groups where the config gives the group's size. Scales per
tensor, row or column are below 0.2% and left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.configfields import ConfigRefused

BASE = "quantization_config"
_SKIP_FIELDS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
_SIMPLE = re.compile(r"[\w.$^\\|()-]{0,200}")
"""A piece of a pattern between two ".*": a config comes from outside, and nothing in it may make matching slow."""
_GROUP = re.compile(r"\([^()]*\)")
MAX_PATTERNS = 64


@dataclass(frozen=True)
class Storage:
    """Bytes per weight of the quantised modules, and which modules are not quantised."""

    quantised_bytes: float
    plain_bytes: float
    compute_bits: int = 16
    cache_bytes: int = 0
    """Bytes per number of the KV cache that the checkpoint asks for, 0: none."""
    experts_only: bool = False
    skipped: Skipped = field(default_factory=lambda: Skipped(frozenset(), (), ()))

    def of(self, *modules: str, expert: bool = False) -> float:
        """Mean bytes per weight over modules of equal size, named as in the checkpoint."""
        if self.experts_only and not expert:
            return self.plain_bytes
        plain = sum(self.skipped.holds(module) for module in modules)
        return (plain * self.plain_bytes + (len(modules) - plain) * self.quantised_bytes) / len(modules)


@dataclass(frozen=True)
class Skipped:
    """Modules that are not quantised: named, or held by one that is named; "*" stands for any one name."""

    names: frozenset[tuple[str, ...]]
    starred: tuple[tuple[str, ...], ...]
    patterns: tuple[tuple[re.Pattern[str], ...], ...]
    """Each as the pieces between its ".*", to be found one after the other."""

    def holds(self, module: str) -> bool:
        parts = tuple(module.split("."))
        spans = [parts[start:end] for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)]
        return (
            any(span in self.names for span in spans)
            or any(_alike(wanted, span) for wanted in self.starred for span in spans)
            or any(_matches(pieces, module) for pieces in self.patterns)
        )


def read_storage(config: object, plain_bytes: int) -> Storage:
    """Storage for a `quantization_config` (None: not quantised). Raises ConfigRefused naming the field."""
    if config is None:
        return Storage(plain_bytes, plain_bytes)
    if not isinstance(config, Mapping):
        raise ConfigRefused(BASE, f"expected an object, got {type(config).__name__}")
    method = str(config.get("quant_method"))
    read = _METHODS.get(method)
    if read is None:
        known = ", ".join(sorted(_METHODS))
        raise ConfigRefused(f"{BASE}.quant_method", f"{method[:40]!r} is not supported (known: {known})")
    size, compute_bits = read(config)
    return Storage(size, plain_bytes, compute_bits, _cache_bytes(config), method == "mxfp4", _skipped(config))


def _fp8(config: Mapping[str, Any]) -> tuple[float, int]:
    block = config.get("weight_block_size")
    if block is None:
        return 1.0, 8
    if not isinstance(block, list) or len(block) != 2:
        raise ConfigRefused(f"{BASE}.weight_block_size", f"must be two numbers, got {block!r:.60}")
    rows, columns = (_positive(side, "weight_block_size") for side in block)
    return 1 + 4 / (rows * columns), 8


def _grouped(config: Mapping[str, Any]) -> tuple[float, int]:
    """AWQ and GPTQ: a float16 scale and a packed zero point per group along the input."""
    bits = _bits(config.get("bits", config.get("w_bit")), "bits")
    group = config.get("group_size", config.get("q_group_size"))
    return bits / 8 + _per_group(group, "group_size", 2 + bits / 8), 16


def _bitsandbytes(config: Mapping[str, Any]) -> tuple[float, int]:
    """4 bits in blocks of 64 with a float32 scale, or with scales quantised again in blocks of 256; or 8 bits."""
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return 1.0, 16
    if not (config.get("load_in_4bit") or config.get("_load_in_4bit")):
        raise ConfigRefused(f"{BASE}.load_in_4bit", "is missing, and so is load_in_8bit")
    scales = 1 / 64 + 4 / (64 * 256) if config.get("bnb_4bit_use_double_quant") else 4 / 64
    return 0.5 + scales, 16


def _mxfp4(config: Mapping[str, Any]) -> tuple[float, int]:
    """Open Compute Project MX format: 4 bits and one shared 8-bit exponent per 32 weights; only experts are stored so."""
    return 0.5 + 1 / 32, 16


def _modelopt(config: Mapping[str, Any]) -> tuple[float, int]:
    algorithm = config.get("quant_algo")
    if algorithm == "FP8":
        return 1.0, 8
    if algorithm == "NVFP4":
        return 0.5 + _per_group(config.get("group_size", 16), "group_size", 1), 8
    raise ConfigRefused(f"{BASE}.quant_algo", f"{algorithm!r:.40} is not supported (known: FP8, NVFP4)")


def _compressed_tensors(config: Mapping[str, Any]) -> tuple[float, int]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(isinstance(each, Mapping) for each in groups.values()):
        raise ConfigRefused(f"{BASE}.config_groups", "is missing or no object of groups")
    sizes = {_scheme(name, group) for name, group in groups.items()}
    if len(sizes) > 1:
        raise ConfigRefused(f"{BASE}.config_groups", "groups of different precision are not supported")
    return sizes.pop()


def _scheme(name: str, group: Mapping[str, Any]) -> tuple[float, int]:
    field = f"config_groups.{name[:40]}.weights"
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise ConfigRefused(f"{BASE}.{field}", "is missing; schemes without quantised weights are not supported")
    bits = _bits(weights.get("num_bits"), f"{field}.num_bits")
    per_group = 0.0
    if weights.get("strategy") in ("group", "tensor_group"):
        scale_bytes = 1.0 if weights.get("strategy") == "tensor_group" else 2.0
        scale_bytes += 0 if weights.get("symmetric", True) else bits / 8
        per_group = _per_group(weights.get("group_size"), f"{field}.group_size", scale_bytes)
    elif weights.get("strategy") == "block":
        per_group = _fp8({"weight_block_size": weights.get("block_structure")})[0] - 1
    both = isinstance(inputs, Mapping) and bits <= 8 and inputs.get("num_bits") in (4, 8)
    return bits / 8 + per_group, 8 if both else 16


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], tuple[float, int]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _grouped,
    "gptq": _grouped,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
}


def _per_group(size: object, field: str, extra_bytes: float) -> float:
    """Bytes per weight that scales add; -1 is one group per column."""
    if size == -1:
        return 0.0
    return extra_bytes / _positive(size, field)


def _bits(value: object, field: str) -> int:
    if type(value) is int and value in (2, 3, 4, 8, 16):
        return value
    raise ConfigRefused(f"{BASE}.{field}", f"must be 2, 3, 4, 8 or 16 bits, got {value!r:.60}")


def _positive(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 20:
        raise ConfigRefused(f"{BASE}.{field}", f"must be a positive whole number, got {value!r:.60}")
    return value


def _cache_bytes(config: Mapping[str, Any]) -> int:
    """What vLLM resolves a KV type "auto" to (its `resolve_kv_cache_dtype_string`)."""
    algorithm, scheme = config.get("kv_cache_quant_algo"), config.get("kv_cache_scheme")
    if algorithm is None and scheme is None:
        return 0
    if algorithm in (None, "FP8") and (scheme is None or (isinstance(scheme, Mapping) and scheme.get("num_bits") == 8)):
        return 1
    field = "kv_cache_scheme" if algorithm in (None, "FP8") else "kv_cache_quant_algo"
    raise ConfigRefused(f"{BASE}.{field}", "only 8 bits are supported for the KV cache")


def _strings(config: Mapping[str, Any], field: str) -> list[str]:
    names = config.get(field)
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigRefused(f"{BASE}.{field}", "must be a list of module names")
    return names


def _skipped(config: Mapping[str, Any]) -> Skipped:
    named = {(name, each) for each in _SKIP_FIELDS for name in _strings(config, each)}
    plain = {tuple(filter(None, name.split("."))) for name, _ in named if not name.startswith("re:")}
    starred = tuple(sorted(name for name in plain if "*" in name))
    patterns = tuple(_pieces(name, each) for name, each in sorted(named) if name.startswith("re:"))
    if len(starred) + len(patterns) > MAX_PATTERNS:
        raise ConfigRefused(BASE, f"more than {MAX_PATTERNS} patterns of modules that are not quantised")
    return Skipped(frozenset(plain), starred, patterns)


def _pieces(name: str, field: str) -> tuple[re.Pattern[str], ...]:
    """The pieces of a regular expression as compressed-tensors writes it after "re:"."""
    pieces = name.removeprefix("re:").split(".*")
    if not all(_SIMPLE.fullmatch(piece) and "|" not in _GROUP.sub("", piece) for piece in pieces):
        raise ConfigRefused(f"{BASE}.{field}", f"the pattern {name!r:.80} is not supported (names, '.', '.*', '|', '$')")
    try:
        return tuple(re.compile(piece) for piece in pieces)
    except re.error as error:
        raise ConfigRefused(f"{BASE}.{field}", f"the pattern {name!r:.80} is wrong: {error}") from None


def _matches(pieces: tuple[re.Pattern[str], ...], module: str) -> bool:
    """Whether the pieces follow each other in the module's name, the first at its start: linear in its length."""
    found = pieces[0].match(module)
    for piece in pieces[1:]:
        found = piece.search(module, found.end()) if found else None
    return found is not None


def _alike(wanted: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(wanted) == len(parts) and all(want in ("*", part) for want, part in zip(wanted, parts, strict=True))

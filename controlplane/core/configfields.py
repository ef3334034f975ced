"""Strict reading of a Hugging Face `config.json`: every getter returns a checked value or refuses by field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "fp32": 4,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "bfloat16": 2,
    "bf16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
}
MAX_COUNT = 1 << 31
MAX_LAYERS = 1024
"""Far above any model; a config that says more would cost memory for nothing."""


class ConfigRefused(ValueError):
    """A config.json cannot be used. `field` is the path of the missing or unusable field, e.g. `text_config.head_dim`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"model config: {field}: {problem}")
        self.field = field
        self.problem = problem


class Fields:
    """The language model's part of a config: the document itself, or the `text_config` of a multimodal wrapper.

    Null and a missing field are the same thing everywhere.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not isinstance(config, Mapping):
            raise ConfigRefused("document", f"expected a JSON object, got {type(config).__name__}")
        inner = config.get("text_config")
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigRefused("text_config", f"expected an object, got {type(inner).__name__}")
        self.outer = config
        self.prefix = "" if inner is None else "text_config."
        self.config: Mapping[str, Any] = config if inner is None else inner
        self.defaults: Mapping[str, int] = {}
        """What the architecture itself defines for a field that its published configs leave out."""

    def get(self, field: str) -> Any:
        value = self.config.get(field)
        return self.defaults.get(field) if value is None else value

    def inherited(self, field: str) -> Any:
        """A field that a wrapper may hold for its language model."""
        value = self.get(field)
        return self.outer.get(field) if value is None else value

    def count(self, field: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """A positive whole number."""
        value = self.get(field)
        if value is None:
            if default is not None:
                return default
            raise self.refuse(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self.refuse(field, f"must be a positive whole number up to {most:,}, got {value!r:.60}")
        return value

    def count_or_zero(self, field: str) -> int:
        """A whole number; 0 if missing."""
        value = self.get(field)
        return 0 if value == 0 and not isinstance(value, bool) else self.count(field, default=0)

    def flag(self, field: str, default: bool) -> bool:
        value = self.inherited(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(field, f"must be true or false, got {value!r:.60}")
        return value

    def items(self, field: str, length: int | None = None) -> list[Any]:
        """A list, of `length` if given; empty if missing."""
        value = self.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refuse(field, f"must be a list, got {type(value).__name__}")
        if length is not None and len(value) != length:
            raise self.refuse(field, f"lists {len(value)} layers, but the model has {length}")
        return value

    def dtype_bytes(self, field: str) -> int:
        """Bytes of a data type that the config must name under `field` or, in newer files, under `dtype`."""
        for where, prefix in ((self.config, self.prefix), (self.outer, "")):
            name = where.get(field) if where.get(field) is not None else where.get("dtype")
            if name is not None:
                return dtype_bytes(name, prefix + field)
        raise self.refuse(field, "is missing; name the data type of the weights, e.g. bfloat16")

    def refuse(self, field: str, problem: str) -> ConfigRefused:
        return ConfigRefused(self.prefix + field, problem)


def dtype_bytes(name: object, field: str = "dtype") -> int:
    """Bytes per element of a data type as transformers or vLLM spell it. Raises ConfigRefused naming `field`."""
    size = DTYPE_BYTES.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if size is None:
        raise ConfigRefused(field, f"unknown data type {name!r:.60} (known: {', '.join(sorted(DTYPE_BYTES))})")
    return size

"""What an engine is started with, as a plain value with a digest. Pure.

Kept as a snapshot with each engine, so that a restart in the middle of a roll-out is of the version that the engine had, and
an engine whose snapshot is not what its pool launches now is known to be outdated. Engines of equal launch may take each
other's roles without a restart; which GPUs a pool selects is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Launch:
    """`source`: model id or path; `args`: the engine's arguments; `config`: the model's config.json."""

    source: str
    kind: str
    connector: str
    tensor_parallel: int = 1
    kv_lease_s: float = 30.0
    args: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    number: int = 1
    """Of the model's roll-outs: the same arguments may launch another version of the engine."""
    pipeline_parallel: int = 1

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal launches."""
        document = asdict(self)
        if self.pipeline_parallel == 1:
            del document["pipeline_parallel"]  # engines from before there were stages are not outdated
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]

    def snapshot(self) -> dict[str, Any]:
        """As it is kept with an engine; `read_snapshot` is the way back."""
        return {**asdict(self), "digest": self.digest}


def read_snapshot(kept: Mapping[str, Any]) -> Launch | None:
    """None for an engine from before there were snapshots ({})."""
    if not kept:
        return None
    return Launch(**{name: value for name, value in kept.items() if name != "digest"})

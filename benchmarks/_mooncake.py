"""Reads a Mooncake trace and tells what caches could hit of it.

Format (Mooncake, https://github.com/kvcache-ai/Mooncake, Apache-2.0): a JSON object a line with `timestamp` (ms),
`input_length`, `output_length` and `hash_ids`, one id per 512 tokens of the prompt, equal only if all before is equal too.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512


@dataclass(frozen=True)
class Arrival:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    keys: tuple[int, ...]
    """Of its whole blocks, the last token's left out: engines compute that one always."""


def read(path: Path, limit: int | None = None) -> list[Arrival]:
    """Raises SystemExit with the line that cannot be read."""
    arrivals: list[Arrival] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(arrivals) == limit:
                break
            try:
                row = json.loads(line)
                at_ms, prompt, output = float(row["timestamp"]), int(row["input_length"]), int(row["output_length"])
                ids = tuple(int(id) for id in row["hash_ids"])
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(
                    f"{path.name} line {number} is no Mooncake row ({error}); see benchmarks/_mooncake.py"
                ) from None
            if prompt < 1 or output < 0 or at_ms < 0:
                raise SystemExit(f"{path.name} line {number}: lengths and times cannot be negative")
            arrivals.append(Arrival(at_ms / 1000, prompt, output, ids[: (prompt - 1) // BLOCK_TOKENS]))
    if not arrivals:
        raise SystemExit(f"{path.name} has no requests")
    return sorted(arrivals, key=lambda each: each.at_s)


def hit_share(arrivals: Sequence[Arrival], capacity: int | None) -> float:
    """Share of all prompt tokens that one cache of `capacity` blocks (None: infinite) hits, used in order of arrival, the
    least recently used block evicted first and the end of a prefix before its start."""
    cache: OrderedDict[int, None] = OrderedDict()
    hit = 0
    for arrival in arrivals:
        hits = next((depth for depth, key in enumerate(arrival.keys) if key not in cache), len(arrival.keys))
        hit += hits * BLOCK_TOKENS
        for key in reversed(arrival.keys):
            cache[key] = None
            cache.move_to_end(key)
        while capacity is not None and len(cache) > capacity:
            cache.popitem(last=False)
    return hit / sum(arrival.prompt_tokens for arrival in arrivals)

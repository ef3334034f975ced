"""Reads from an engine's /metrics, once, how many tokens its KV cache has room for."""

from __future__ import annotations

import re

from controlplane.router import legs, prefixes
from controlplane.router.engines import Engine
from controlplane.router.limits import Limits
from controlplane.router.upstream import Fault

_INFO = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_BLOCKS = re.compile(rb'(?:^|,)num_gpu_blocks="(\d{1,12})"')
_SIZE = re.compile(rb'(?:^|,)block_size="(\d{1,6})"')


async def learn(engine: Engine, limits: Limits) -> None:
    """Sets the engine's room and that of the index for it; leaves both if it does not tell. Never raises for what an engine
    does."""
    collector = legs.Collector(limits.metrics_bytes)
    outcome = await legs.run(engine.pool, engine.get(b"/metrics"), collector, limits.metrics_s, limits)
    if isinstance(outcome, Fault) or outcome.status != 200:
        return
    tokens = parse(outcome.body)
    if tokens:
        engine.kv_tokens = tokens
        engine.holder.capacity = max(1, tokens // prefixes.BLOCK_TOKENS)


def parse(page: bytes) -> int:
    """Tokens, over all of the engine's replicas; 0 if the page does not tell."""
    tokens = 0
    for labels in _INFO.findall(page):
        blocks, size = _BLOCKS.search(labels), _SIZE.search(labels)
        if blocks and size:
            tokens += int(blocks[1]) * int(size[1])
    return tokens

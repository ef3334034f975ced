"""What an engine is told of KV events: vLLM's kv_events_config, from the checked field of its spec. Pure."""

from __future__ import annotations

from controlplane.core.engine_args import ArgumentRefused, clean_kv_events
from controlplane.core.protocol import EngineSpec
from workers.engines.base import SpecRefused


def topic(engine: str) -> str:
    """By what a reader tells engines apart."""
    return f"kv@{engine}"


def kv_events_config(spec: EngineSpec) -> dict[str, bool | int | float | str]:
    """vLLM's kv_events_config for this spec; {} without events. Raises SpecRefused."""
    try:
        events = clean_kv_events(spec.kv_events)
    except ArgumentRefused as problem:
        raise SpecRefused(f"{spec.id}: KV events: {problem}") from problem
    return {**events, "publisher": "zmq", "topic": topic(spec.id)} if events else {}

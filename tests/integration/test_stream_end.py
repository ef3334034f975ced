"""What senders leave of the telemetry stream: by time, on Valkey's own clock, and never fewer than a number of entries."""

from __future__ import annotations

import time

import pytest
import redis

from controlplane.common.stream_end import StreamEnd
from controlplane.core import names

KEPT_MS = names.TELEMETRY_KEPT_S * 1000
A_NODE = 100
"""Valkey cuts whole nodes of its stream, of so many entries."""


def fill(valkey: redis.Redis, entries: int, ago_ms: int) -> int:
    """`entries` a second apart, the last of them `ago_ms` old; its time."""
    last = int(time.time() * 1000) - ago_ms
    pipeline = valkey.pipeline(transaction=False)
    for place in range(entries):
        pipeline.xadd(names.TELEMETRY_STREAM, {"r": b"x"}, id=f"{last - (entries - 1 - place) * 1000}-0")
    pipeline.execute()
    return last


def send(valkey: redis.Redis, end: StreamEnd) -> None:
    """As agents and routers do."""
    pipeline = valkey.pipeline(transaction=False)
    pipeline.xadd(names.TELEMETRY_STREAM, {"r": b"x"}, **end.options())
    pipeline.xlen(names.TELEMETRY_STREAM)
    end.note(pipeline.execute())


def test_ten_minutes_are_kept_of_a_large_fleets_stream(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "TELEMETRY_AT_LEAST", 100)
    fill(valkey, 1500, ago_ms=1000)
    end = StreamEnd()
    for _ in range(3):
        send(valkey, end)
    kept = valkey.xlen(names.TELEMETRY_STREAM)
    assert 600 <= kept <= 600 + A_NODE + 5
    oldest = int(valkey.xrange(names.TELEMETRY_STREAM, count=1)[0][0].split(b"-")[0])
    assert oldest <= time.time() * 1000 - KEPT_MS + A_NODE * 1000


def test_a_small_fleets_stream_is_kept_longer_and_a_silent_sender_cuts_nothing(valkey: redis.Redis) -> None:
    fill(valkey, 1500, ago_ms=1000)
    end = StreamEnd()
    for _ in range(3):
        send(valkey, end)
    assert valkey.xlen(names.TELEMETRY_STREAM) == 1503


def test_the_first_entry_of_a_sender_cuts_nothing(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "TELEMETRY_AT_LEAST", 100)
    fill(valkey, 1500, ago_ms=1000)
    send(valkey, StreamEnd())
    assert valkey.xlen(names.TELEMETRY_STREAM) == 1501

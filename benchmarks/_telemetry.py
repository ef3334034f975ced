"""Sends what the agents of a large fleet would: per node and second a record of its GPUs, its engines and itself.

Bodies are packed once a second for a few profiles and put together per node, so that sending costs little beside what is
measured. Counters and histograms rise as those of busy engines do, with vLLM's own bounds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
from _history import ITL_S, TRANSFER_S, TTFT_S
from redis import Redis

from controlplane.common.stream_end import StreamEnd
from controlplane.core import names
from controlplane.core.codec import encode
from controlplane.core.protocol import VERSION, EngineRow, GpuRow, NodeRow, RequestRow, RouterRow

PROFILES = 32
GPU_BODIES = 512
PHASE_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOLD = {
    "ttft": (0.3, TTFT_S, 3),
    "itl": (0.025, ITL_S, 600),
    "queue": (0.05, PHASE_S, 3),
    "prefill": (0.3, PHASE_S, 3),
    "decode": (6.0, PHASE_S, 3),
    "transfer": (0.04, TRANSFER_S, 3),
}
"""Of an engine: median, bounds, values a second."""
GAINED = {
    "prompt_tokens": 12_000.0,
    "generation_tokens": 600.0,
    "requests": 3.0,
    "prefix_queries": 12_000.0,
    "prefix_hits": 4_000.0,
    "local_tokens": 6_000.0,
    "external_tokens": 2_000.0,
    "transfer_bytes": 1e9,
    "transfers": 3.0,
    "transfers_failed": 0.0,
    "leases_expired": 0.0,
    "preemptions": 0.0,
}


@dataclass(frozen=True)
class Node:
    """`engines`: (id, model); `gpus`: (uuid, engine)."""

    name: str
    gpus: Sequence[tuple[str, str]]
    engines: Sequence[tuple[str, str]]


class Profile:
    """The counters of one busy engine."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._counters = {name: self._draw.uniform(0, 1000) * gained for name, gained in GAINED.items()}
        self._counts = {name: [0.0] * (len(bounds) + 1) for name, (_, bounds, _) in TOLD.items()}
        self._sums = dict.fromkeys(TOLD, 0.0)

    def second(self) -> bytes:
        """What follows engine, model and incarnation in a row, one second later."""
        for name, gained in GAINED.items():
            self._counters[name] += round(gained * self._draw.uniform(0.5, 1.5))
        histograms: dict[str, Any] = {}
        for name, (median, bounds, values) in TOLD.items():
            counts = self._counts[name]
            for _ in range(min(values, 12)):
                value = median * self._draw.lognormvariate(0, 0.6)
                self._sums[name] += value * max(1, values // 12)
                counts[sum(bound < value for bound in bounds)] += max(1, values // 12)
            total, cumulative = 0.0, []
            for count in counts:
                total += count
                cumulative.append(total)
            histograms[name] = {"bounds": bounds, "counts": cumulative[:-1], "sum": self._sums[name], "count": total}
        rest = {
            "state": "ready",
            "running": self._draw.randint(20, 60),
            "waiting": self._draw.randint(0, 3),
            "kv_usage": self._draw.uniform(0.3, 0.9),
            "counters": self._counters,
            "histograms": histograms,
        }
        return _items(rest)


class Fleet:
    def __init__(self, valkey: Redis, nodes: Sequence[Node], virtual: bool = False) -> None:
        """`virtual`: entries are of the time that `send` is told, else of Valkey's."""
        self._valkey, self._nodes, self._boot, self._virtual = valkey, nodes, "bench", virtual
        self._draw = random.Random(7)
        self._profiles = [Profile(seed) for seed in range(PROFILES)]
        self._gpu_bodies = [self._gpu_body() for _ in range(GPU_BODIES)]
        self._gpu_heads = [[_items({"uuid": uuid, "engine": engine}) for uuid, engine in node.gpus] for node in nodes]
        self._engine_heads = [
            [_items({"engine": id, "model": model, "incarnation": 1}) for id, model in node.engines] for node in nodes
        ]
        self._seq = 0
        self._router_seq = 0
        self._requests = 0
        self._end = StreamEnd()
        self._gpu_map = _map_head(len(GpuRow.__dataclass_fields__))
        self._engine_map = _map_head(len(EngineRow.__dataclass_fields__))

    def second(self, slices: int) -> Iterator[range]:
        """Begins a second of the fleet; its nodes in `slices` parts, each to be given to `send`."""
        self._bodies = [profile.second() for profile in self._profiles]
        self._seq += 3
        step = -(-len(self._nodes) // slices)
        for start in range(0, len(self._nodes), step):
            yield range(start, min(start + step, len(self._nodes)))

    def send(self, part: range, now: float) -> None:
        """The records of these nodes, taken at `now` (Unix seconds)."""
        pipeline = self._valkey.pipeline(transaction=False)
        for place in part:
            for record in self._records(place, now):
                pipeline.xadd(names.TELEMETRY_STREAM, {"r": record}, id=self._id(now), **self._end.options())
        pipeline.xlen(names.TELEMETRY_STREAM)
        self._end.note(pipeline.execute())

    def requests(self, count: int, models: Sequence[str], engines: Sequence[str], now: float) -> None:
        """A router's record of itself and of `count` requests that just ended."""
        row = RouterRow("bench", in_flight=count, requests=self._requests, failed=0, retried=0, handoffs_open=0)
        self._router_record("router", [row], now)
        if count:
            self._router_record("request", [self._request(models, engines, now) for _ in range(count)], now)

    def _records(self, place: int, now: float) -> Iterator[bytes]:
        node, draw = self._nodes[place], self._draw
        gpus = [self._gpu_map + head + draw.choice(self._gpu_bodies) for head in self._gpu_heads[place]]
        yield self._record(f"agent:{node.name}", self._seq - 2, now, "gpu", gpus)
        engines = [
            self._engine_map + head + self._bodies[(place + number) % PROFILES]
            for number, head in enumerate(self._engine_heads[place])
        ]
        yield self._record(f"agent:{node.name}", self._seq - 1, now, "engine", engines)
        row = NodeRow(node.name, draw.uniform(0.1, 0.3), 100 << 30, 1 << 40, 1 << 42)
        yield self._record(f"agent:{node.name}", self._seq, now, "node", [msgpack.packb(encode(row))])

    def _gpu_body(self) -> bytes:
        tensor, dram = self._draw.uniform(0, 0.9), self._draw.uniform(0, 0.8)
        return _items(
            {
                "tensor": tensor,
                "tensor_peak": min(1.0, tensor + 0.1),
                "dram": dram,
                "memory_used_bytes": self._draw.randint(60 << 30, 79 << 30),
                "power_w": self._draw.uniform(200, 690),
            }
        )

    def _request(self, models: Sequence[str], engines: Sequence[str], now: float) -> RequestRow:
        self._requests += 1
        draw = self._draw
        return RequestRow(
            id=f"{self._boot}-{self._requests:016}",
            model=draw.choice(models),
            path="disaggregated",
            reason="mode",
            status=200,
            outcome="ok",
            arrived_at=now - 6.0,
            stream=True,
            prefill_engine=draw.choice(engines),
            decode_engine=draw.choice(engines),
            queue_ms=1.0,
            prefill_ms=draw.lognormvariate(5, 0.6),
            handoff_ms=draw.lognormvariate(4, 0.6),
            ttft_ms=draw.lognormvariate(5.5, 0.6),
            total_ms=6000.0,
            itl_ms=tuple(draw.lognormvariate(3.2, 0.3) for _ in range(64)),
            prompt_tokens=4096,
            output_tokens=300,
            cached_tokens=1024,
            kv_bytes=1 << 30,
            session="0123456789abcdef",
        )

    def _router_record(self, kind: str, rows: Sequence[Any], now: float) -> None:
        self._router_seq += 1
        record = self._record("router:bench", self._router_seq, now, kind, [msgpack.packb(encode(row)) for row in rows])
        self._valkey.xadd(names.TELEMETRY_STREAM, {"r": record}, id=self._id(now))

    def _id(self, now: float) -> str:
        return f"{int(now * 1000)}-*" if self._virtual else "*"

    def _record(self, source: str, seq: int, at: float, kind: str, rows: Sequence[bytes]) -> bytes:
        head = {"v": VERSION, "source": source, "boot": self._boot, "seq": seq, "at": at, "kind": kind}
        packer = msgpack.Packer()
        return b"".join((_map_head(7), _items(head), msgpack.packb("rows"), packer.pack_array_header(len(rows)), *rows))


def _map_head(size: int) -> bytes:
    packed: bytes = msgpack.Packer().pack_map_header(size)
    return packed


def _items(values: dict[str, Any]) -> bytes:
    """Keys and values without the head of their map, to be put together with others."""
    return b"".join(msgpack.packb(part) for item in values.items() for part in item)

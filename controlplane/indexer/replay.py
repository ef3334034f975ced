"""Asks an engine for batches that were missed: vLLM's replay socket repeats the last `buffer_steps` of them."""

from __future__ import annotations

import asyncio
import time

import zmq

from controlplane.indexer.events import MAX_BATCH_BYTES

PATIENCE_S = 2.0
MAX_BATCHES = 20_000
_END = (-1).to_bytes(8, "big", signed=True)


async def ask(context: zmq.Context[zmq.Socket[bytes]], address: str, number: int) -> list[tuple[int, bytes]]:
    """(number, payload) of every batch from `number` on that it still has; fewer if it is slow or away."""
    return await asyncio.to_thread(_ask, context, address, number)


def _ask(context: zmq.Context[zmq.Socket[bytes]], address: str, number: int) -> list[tuple[int, bytes]]:
    batches: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        socket.setsockopt(zmq.IPV6, "[" in address)
        socket.connect(address)
        socket.send_multipart((b"", number.to_bytes(8, "big")), zmq.DONTWAIT)
        while len(batches) < MAX_BATCHES and socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            frames = socket.recv_multipart(zmq.DONTWAIT)
            if len(frames) != 4 or frames[2] == _END:
                break
            batches.append((int.from_bytes(frames[2], "big"), frames[3]))
    return batches

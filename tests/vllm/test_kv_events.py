"""A real and a simulated engine are sent the same: what they publish of their prefix caches is the same, event by event."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from tests.simulated_engines import running, spec
from tests.vllm import harness
from tests.vllm.harness import BLOCK, wait_for

TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
"""KV of the simulated Llama-8B."""
BLOCKS = harness.ARGS["kv_cache_memory_bytes"] // (BLOCK * 4 * 2 * 2 * 64 * 4) - 1
"""What the tiny model's cache holds: 4 layers, 2 KV heads of 64 numbers of 4 bytes; vLLM sets one block aside."""

Ask = Callable[[list[int], str], object]


def prompts() -> list[tuple[list[int], str]]:
    """(token ids, cache salt): new ones, known ones whole and in part, salted ones, and more than the cache holds."""
    chance = random.Random(5)
    first, second = ([chance.randrange(300, 2000) for _ in range(length)] for length in (3 * BLOCK, 5 * BLOCK + 7))
    asked = [(first, ""), (first, ""), (second, ""), (second[: 2 * BLOCK + 1], ""), (first, "team-a"), (first, "team-b")]
    many = [([chance.randrange(300, 2000) for _ in range(2000)], "") for _ in range(9)]
    return [*asked, *many, (first, ""), (second, "team-a")]


def events_of(ask: Ask, socket: zmq.Socket[bytes], topic: bytes) -> list[Any]:
    """All events of these prompts. A first prompt is asked again until the connection stands; it is not counted."""
    batches: list[tuple[int, Any]] = []

    def read(wait_ms: int) -> None:
        while socket.poll(wait_ms):
            name, number, payload = socket.recv_multipart()
            if name == topic:
                batches.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))

    def connected() -> bool:
        ask([7] * (BLOCK - 1), "")
        ask([len(batches) + 400] * BLOCK, "until it is heard")
        read(300)
        return bool(batches)

    wait_for(connected, 60, "the first event")
    batches.clear()
    for tokens, salt in prompts():
        ask(tokens, salt)
        read(300)
    read(1000)
    numbers = [number for number, _ in batches]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(len(batch) == 3 and type(batch[0]) is float and batch[2] == 0 for _, batch in batches)
    return [event for _, batch in batches for event in batch[1]]


def test_events_are_equal(tiny_model: Path, tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv@")
        to = {"endpoint": f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"}
        with harness.alone(tiny_model, tmp_path, to) as real:

            def ask_real(tokens: list[int], salt: str) -> object:
                body = {"model": harness.MODEL, "prompt": tokens, "max_tokens": 1}
                return real.answer("/v1/completions", body | ({"cache_salt": salt} if salt else {}))

            expected = events_of(ask_real, socket, b"kv@a")
        args = {"block_size": BLOCK, "kv_cache_memory_bytes": BLOCKS * BLOCK * TOKEN_BYTES, "max_model_len": 2048}
        with running(tmp_path, spec("s", connector="none", args=args, kv_events=to)) as simulated:

            def ask_simulated(tokens: list[int], salt: str) -> object:
                return simulated.text(tokens, max_tokens=1, **({"cache_salt": salt} if salt else {}))

            told = events_of(ask_simulated, socket, b"kv@s")
    assert {event["type"] for event in expected} == {"BlockStored", "BlockRemoved"}
    assert told == expected

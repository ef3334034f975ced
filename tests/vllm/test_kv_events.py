"""A real and a simulated engine are sent the same: they publish the same of their prefix caches, event by event, and count
the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgpack
import zmq
from prometheus_client.parser import text_string_to_metric_families

from tests.simulated_engines import running, spec
from tests.vllm import harness
from tests.vllm.harness import BLOCK, wait_for

TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
"""KV of the simulated Llama-8B."""
BLOCKS = harness.ARGS["kv_cache_memory_bytes"] // (BLOCK * 4 * 2 * 2 * 64 * 4) - 1
"""What the tiny model's cache holds: 4 layers, 2 KV heads of 64 numbers of 4 bytes; vLLM sets one block aside."""

COUNTED = (
    "prompt_tokens_total", "prompt_tokens_by_source_total", "prompt_tokens_cached_total",
    "prompt_tokens_cached_by_source_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    "generation_tokens_total", "request_success_total", "num_preemptions_total", "request_prompt_tokens",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
    "request_num_preemptions", "request_prefill_kv_computed_tokens", "iteration_tokens_total",
)  # fmt: skip
TIMED = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds",
)  # fmt: skip
"""Of these only how many there are can be equal."""

Ask = Callable[[list[int], str], object]


def counts(url: str) -> dict[str, float]:
    """Samples of the page that do not depend on time, by name and labels."""
    page = httpx.get(f"{url}/metrics", timeout=30).text
    return {
        f"{sample.name}{sorted((key, value) for key, value in sample.labels.items() if key != 'model_name')}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if (sample.name.removeprefix("vllm:").startswith(COUNTED) and not sample.name.endswith("_created"))
        or sample.name.removeprefix("vllm:") in [f"{name}_count" for name in TIMED]
    }


@dataclass
class Told:
    events: list[Any]
    counted: dict[str, float]


def prompts() -> list[tuple[list[int], str]]:
    """(token ids, cache salt): new ones, known ones whole and in part, salted ones, and more than the cache holds."""
    chance = random.Random(5)
    first, second = ([chance.randrange(300, 2000) for _ in range(length)] for length in (3 * BLOCK, 5 * BLOCK + 7))
    asked = [(first, ""), (first, ""), (second, ""), (second[: 2 * BLOCK + 1], ""), (first, "team-a"), (first, "team-b")]
    many = [([chance.randrange(300, 2000) for _ in range(2000)], "") for _ in range(9)]
    return [*asked, *many, (first, ""), (second, "team-a")]


def told_by(ask: Ask, url: str, socket: zmq.Socket[bytes], topic: bytes) -> Told:
    """Events and counts of these prompts. A first prompt is asked again until the connection stands; it is not counted."""
    batches: list[tuple[int, Any]] = []

    def read(wait_ms: int) -> None:
        while socket.poll(wait_ms):
            name, number, payload = socket.recv_multipart()
            if name == topic:
                batches.append((int.from_bytes(number, "big"), msgpack.unpackb(payload)))

    def connected() -> bool:
        ask([7] * (BLOCK - 2), "")
        ask([len(batches) + 400] * BLOCK, "until it is heard")
        read(300)
        return bool(batches)

    wait_for(connected, 60, "the first event")
    batches.clear()
    before = counts(url)
    for tokens, salt in prompts():
        ask(tokens, salt)
        read(300)
    read(1000)
    numbers = [number for number, _ in batches]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(len(batch) == 3 and type(batch[0]) is float and batch[2] == 0 for _, batch in batches)
    counted = {key: value - before.get(key, 0.0) for key, value in counts(url).items()}
    return Told([event for _, batch in batches for event in batch[1]], counted)


def test_events_and_counts_are_equal(tiny_model: Path, tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv@")
        to = {"endpoint": f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"}
        with harness.alone(tiny_model, tmp_path, kv_events=to) as real:

            def ask_real(tokens: list[int], salt: str) -> object:
                body = {"model": harness.MODEL, "prompt": tokens, "max_tokens": 1 + len(tokens) % 2}
                return real.answer("/v1/completions", body | ({"cache_salt": salt} if salt else {}))

            expected = told_by(ask_real, real.url, socket, b"kv@a")
        args = {"block_size": BLOCK, "kv_cache_memory_bytes": BLOCKS * BLOCK * TOKEN_BYTES, "max_model_len": 2048}
        with running(tmp_path, spec("s", connector="none", args=args, kv_events=to)) as simulated:

            def ask_simulated(tokens: list[int], salt: str) -> object:
                return simulated.text(tokens, max_tokens=1 + len(tokens) % 2, **({"cache_salt": salt} if salt else {}))

            told = told_by(ask_simulated, simulated.url, socket, b"kv@s")
    assert {event["type"] for event in expected.events} == {"BlockStored", "BlockRemoved"}
    assert told.events == expected.events
    assert len(expected.counted) > 100
    assert told.counted == expected.counted

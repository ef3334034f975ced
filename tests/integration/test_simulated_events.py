"""KV events of real engine processes over real ZMQ sockets: who listens knows what every prefix cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from controlplane.common.prefixhash import PrefixHasher, event_hash
from tests.simulated_engines import RunningEngine, free_port, running, spec, until

BLOCK = 16
SMALL_CACHE = {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 400}
"""32 blocks of Llama-8B."""


def hashes(tokens: list[int], salt: str = "") -> list[int]:
    return [event_hash(each) for each in PrefixHasher().chain(tokens, BLOCK, salt)]


@dataclass
class Reader:
    """One SUB socket that all engines connect to, and the caches as their events tell them."""

    socket: zmq.Socket[bytes]
    endpoint: str
    batches: dict[str, list[Any]] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    cached: dict[str, set[int]] = field(default_factory=dict)

    def drain(self, wait_ms: int = 0) -> None:
        while self.socket.poll(wait_ms):
            topic, number, payload = self.socket.recv_multipart()
            name = topic.decode()
            batch = msgpack.unpackb(payload)
            self.batches.setdefault(name, []).append(batch)
            self.numbers.setdefault(name, []).append(int.from_bytes(number, "big"))
            follow(self.cached.setdefault(name, set()), batch)

    def events(self, name: str) -> list[Any]:
        return [event for batch in self.batches.get(name, []) for event in batch[1]]


def follow(cached: set[int], batch: Any) -> None:
    for event in batch[1]:
        match event["type"]:
            case "BlockStored":
                cached.update(event["block_hashes"])
            case "BlockRemoved":
                cached.difference_update(event["block_hashes"])
            case "AllBlocksCleared":
                cached.clear()


@pytest.fixture
def reader() -> Iterator[Reader]:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv@")
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        yield Reader(socket, f"tcp://127.0.0.1:{port}")


def heard(engine: RunningEngine, reader: Reader, name: str) -> None:
    """Until its events arrive: an engine publishes into the void before its connection stands."""
    tokens = iter(range(100_000, 900_000, 1000))

    def asked() -> bool:
        start = next(tokens)
        engine.text(list(range(start, start + BLOCK)), max_tokens=1)
        reader.drain(100)
        return bool(reader.batches.get(name))

    until(asked)


def telling(engine: str, endpoint: str, **args: Any) -> Any:
    return spec(engine, kv_events={"endpoint": endpoint}, args=args)


def test_stored_blocks_are_told_as_vllm_tells_them(tmp_path: Path, reader: Reader) -> None:
    with running(tmp_path, telling("e1", reader.endpoint)) as engine:
        heard(engine, reader, "kv@e1")
        before = len(reader.events("kv@e1"))
        prompt = list(range(7000, 7040))
        engine.text(prompt, max_tokens=10, cache_salt="team-a", temperature=0)
        until(lambda: reader.drain(50) or len(reader.events("kv@e1")) >= before + 2)
    stored, grown = reader.events("kv@e1")[before:]
    assert stored == {
        "type": "BlockStored",
        "block_hashes": hashes(prompt, "team-a"),
        "parent_block_hash": None,
        "token_ids": prompt[:32],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["team-a"], None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    whole = prompt + grown["token_ids"][-8:]
    assert grown["token_ids"][:8] == prompt[32:]
    assert (grown["parent_block_hash"], grown["block_hashes"]) == (stored["block_hashes"][-1], hashes(whole, "team-a")[2:])
    for batch in reader.batches["kv@e1"]:
        assert (len(batch), type(batch[0]), batch[2]) == (3, float, 0)
    numbers = reader.numbers["kv@e1"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_equal_prompts_have_equal_hashes_on_all_engines(tmp_path: Path, reader: Reader) -> None:
    prompt = list(range(5000, 5100))
    with running(tmp_path, telling("e1", reader.endpoint)) as one, running(tmp_path, telling("e2", reader.endpoint)) as two:
        for engine, name in ((one, "kv@e1"), (two, "kv@e2")):
            heard(engine, reader, name)
            engine.text(prompt, max_tokens=1)
            until(lambda name=name: reader.drain(50) or set(hashes(prompt)) <= reader.cached[name])


def test_who_follows_the_events_knows_what_a_full_cache_still_holds(tmp_path: Path, reader: Reader) -> None:
    with running(tmp_path, telling("e1", reader.endpoint, **SMALL_CACHE)) as engine:
        heard(engine, reader, "kv@e1")
        prompts = [list(range(start, start + 150)) for start in range(10_000, 16_000, 1000)]
        for prompt in [*prompts, prompts[4], prompts[1]]:
            engine.text(prompt, max_tokens=20)
        reader.drain(200)
        assert any(event["type"] == "BlockRemoved" for event in reader.events("kv@e1"))
        for prompt in (prompts[4], prompts[1], prompts[2]):
            known = 0
            for each in hashes(prompt):
                if each not in reader.cached["kv@e1"]:
                    break
                known += BLOCK
            before = engine.metric("vllm:prefix_cache_hits_total")
            engine.text(prompt, max_tokens=1)
            assert engine.metric("vllm:prefix_cache_hits_total") - before == known
            reader.drain(200)


def test_a_reset_cache_is_told_with_the_next_step(tmp_path: Path, reader: Reader) -> None:
    with running(tmp_path, telling("e1", reader.endpoint)) as engine:
        heard(engine, reader, "kv@e1")
        assert engine.http.post("/reset_prefix_cache").json() == {"success": True}
        reader.drain(200)
        assert reader.events("kv@e1")[-1]["type"] == "BlockStored"
        engine.text(list(range(32)), max_tokens=1)
        until(lambda: reader.drain(50) or reader.cached["kv@e1"] == set(hashes(list(range(32)))))
        assert [event["type"] for event in reader.events("kv@e1")][-2:] == ["AllBlocksCleared", "BlockStored"]


def test_the_cache_is_not_reset_under_a_held_prompt(tmp_path: Path) -> None:
    with running(tmp_path) as engine:
        engine.prefill(list(range(40)))
        assert engine.http.post("/reset_prefix_cache").json() == {"success": False}
        assert engine.http.post("/reset_prefix_cache?reset_running_requests=true").status_code == 500
        assert engine.http.post("/reset_prefix_cache", headers={"Authorization": "Bearer no"}).status_code == 401


def test_a_late_reader_asks_for_what_it_missed(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    events: Mapping[str, Any] = {
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://127.0.0.1:{ports[1]}",
        "buffer_steps": 3,
        "hwm": 1,
    }
    prompts = [list(range(start, start + BLOCK)) for start in range(0, 5000, 1000)]
    with running(tmp_path, spec(kv_events=events)) as engine, zmq.Context() as context:
        for prompt in prompts:
            engine.text(prompt, max_tokens=1)
        with context.socket(zmq.DEALER) as replay:
            replay.setsockopt(zmq.LINGER, 0)
            replay.connect(f"tcp://127.0.0.1:{ports[1]}")
            replay.send_multipart((b"nonsense",))
            replay.send_multipart((b"", (1).to_bytes(8, "big")))
            answers = []
            while not answers or answers[-1][2] != b"\xff" * 8:
                assert replay.poll(10_000)
                answers.append(replay.recv_multipart())
        assert [(topic, int.from_bytes(number, "big")) for _, topic, number, _ in answers[:-1]] == [
            (b"kv@e1", 2), (b"kv@e1", 3), (b"kv@e1", 4),
        ]  # fmt: skip
        assert msgpack.unpackb(answers[0][3])[1][0]["token_ids"] == prompts[2]
        assert answers[-1][1:] == [b"", b"\xff" * 8, b""]
        with context.socket(zmq.SUB) as live:
            live.setsockopt(zmq.LINGER, 0)
            live.subscribe(b"")
            live.connect(f"tcp://127.0.0.1:{ports[0]}")
            until(lambda: engine.text("x" * 200, max_tokens=1, cache_salt=str(live.poll(100))) and live.poll(100))


def test_an_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    port = free_port()
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        taken.bind(f"tcp://127.0.0.1:{port}")
        with (
            pytest.raises(AssertionError, match=f"KV events at tcp://127.0.0.1:{port}: Address already in use"),
            running(tmp_path, telling("e1", f"tcp://*:{port}")),
        ):
            pass

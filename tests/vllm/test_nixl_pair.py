"""Real vLLM engines with NIXL behind the real router: what comes out is what one engine alone would say, and the KV of
every prompt really travelled.

What remains on the decode engine: it runs the last token of a prompt once more, to get the first token's logits. vLLM counts
that token as transferred, except for a prompt of one token, which it counts as computed although its block was pulled too.
Blocks travel whole, the last one partly filled.
"""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from tests.vllm.harness import BLOCK, MODEL, RealEngine, probe
from tests.vllm.router import RouterProcess

Pair = tuple[RealEngine, RealEngine]

LENGTHS = (1, 2, 3, 16, 31, 32, 33, 40, 63, 64, 65, 96, 100, 128, 200, 256, 500, 777, 1024, 1500)
BLOCK_BYTES = BLOCK * 4 * 2 * 2 * 64 * 4  # tokens x layers x (K, V) x KV heads x head size x float32
TRANSFERS, BYTES = "vllm:nixl_xfer_time_seconds_count", "vllm:nixl_bytes_transferred_sum"


def prompt(length: int, seed: int) -> list[int]:
    """Token ids of its own: no two prompts share a block, so no prefix cache can stand in for a transfer."""
    chance = random.Random(f"{seed}:{length}")
    return [chance.randrange(3, 2048) for _ in range(length)]


def greedy(tokens: list[int], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": tokens, "max_tokens": 24, "temperature": 0, "logprobs": 1, **more}


def alone(engine: RealEngine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The engine's own whole answer; the salt keeps it from using KV that was transferred before."""
    return engine.answer(path, {**body, "cache_salt": "computed-here"})


def check_twenty_prompts(router: RouterProcess, prefill: RealEngine, decode: RealEngine, seed: int) -> None:
    sources, transfers, size = decode.by_source(), decode.metric(TRANSFERS), decode.metric(BYTES)
    computed = prefill.by_source()["local_compute"]
    answers = {length: router.answer("/v1/completions", greedy(prompt(length, seed))) for length in LENGTHS}
    grown = {source: value - sources[source] for source, value in decode.by_source().items()}

    assert grown == {"external_kv_transfer": sum(LENGTHS) - 1, "local_compute": 1}  # the prompt of one token
    assert decode.metric(TRANSFERS) - transfers == len(LENGTHS)
    assert decode.metric(BYTES) - size == sum(-(-length // BLOCK) for length in LENGTHS) * BLOCK_BYTES
    assert prefill.by_source()["local_compute"] - computed == sum(LENGTHS)
    for length, answer in answers.items():
        whole = alone(decode, "/v1/completions", greedy(prompt(length, seed)))
        got, expected = answer["choices"][0], whole["choices"][0]
        assert got["logprobs"]["tokens"] == expected["logprobs"]["tokens"], f"a prompt of {length} tokens"
        assert got["logprobs"]["token_logprobs"] == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-3)
        assert got["text"] == expected["text"]
        assert got["finish_reason"] == expected["finish_reason"]
        assert answer["usage"] == whole["usage"]
        assert answer["usage"]["prompt_tokens"] == length


def test_twenty_prompts_give_the_tokens_of_one_engine_in_both_directions(nixl_pair: Pair, router: RouterProcess) -> None:
    one, other = nixl_pair
    router.route(one, other, "nixl")
    check_twenty_prompts(router, one, other, seed=1)
    router.route(other, one, "nixl")  # roles exchanged on the live pair, nothing restarted
    check_twenty_prompts(router, other, one, seed=2)


def test_a_streamed_completion_is_the_same_text_with_its_usage(nixl_pair: Pair, router: RouterProcess) -> None:
    one, other = nixl_pair
    router.route(one, other, "nixl")
    body = greedy(prompt(300, seed=3))
    del body["logprobs"]
    events = router.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    whole = alone(other, "/v1/completions", body)
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == whole["choices"][0]["text"]
    assert {key: events[-1]["usage"][key] for key in ("prompt_tokens", "completion_tokens")} == {
        "prompt_tokens": 300,
        "completion_tokens": whole["usage"]["completion_tokens"],
    }


def test_a_chat_is_the_same_streamed_and_whole(nixl_pair: Pair, router: RouterProcess) -> None:
    one, other = nixl_pair
    router.route(one, other, "nixl")
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Where does a coroutine wait? " * 30}],
        "max_tokens": 32,
        "temperature": 0,
    }
    before = other.by_source()
    answer = router.answer("/v1/chat/completions", body)
    assert other.by_source()["external_kv_transfer"] - before["external_kv_transfer"] == answer["usage"]["prompt_tokens"]
    events = router.events("/v1/chat/completions", body)
    whole = alone(other, "/v1/chat/completions", body)
    assert answer["choices"][0]["message"] == whole["choices"][0]["message"]
    assert answer["usage"] == whole["usage"]
    streamed = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert streamed == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "poison",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"vllm_xargs": {"kv_transfer_params": {"do_remote_prefill": True}}},
        {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": True, "remote_block_ids": [[1]]}},
    ],
)
def test_kv_parameters_of_a_client_reach_no_engine(poison: dict[str, Any], nixl_pair: Pair, router: RouterProcess) -> None:
    one, other = nixl_pair
    router.route(one, other, "nixl")
    body = greedy(prompt(70, seed=4), stream=False)
    clean = router.answer("/v1/completions", body)
    assert router.answer("/v1/completions", {**body, **poison})["choices"] == clean["choices"]
    for engine in nixl_pair:
        assert httpx.get(engine.url + "/health", timeout=10).status_code == 200


async def test_a_probe_sees_kv_move_in_both_directions(nixl_pair: Pair) -> None:
    for prefill, decode in (nixl_pair, nixl_pair[::-1]):
        sent = decode.metric(BYTES)
        outcome = await probe(prefill, decode, "nixl")
        assert outcome.verdict.verified, outcome.verdict.reason
        assert outcome.verdict.kv_bytes == decode.metric(BYTES) - sent
        assert outcome.handoff_ms is not None and outcome.handoff_ms > 0


async def test_a_probe_tells_an_engine_that_was_given_no_kv(nixl_pair: Pair) -> None:
    """It answers rightly all the same: it computes the prompt itself."""
    outcome = await probe(*nixl_pair, "example")
    assert not outcome.verdict.verified
    assert "no KV moved: by the decode engine's counters 0 of" in outcome.verdict.reason


def test_an_engine_answers_nobody_without_its_key(nixl_pair: Pair) -> None:
    body = greedy(prompt(3, seed=5))
    assert httpx.post(nixl_pair[0].url + "/v1/completions", json=body, timeout=10).status_code == 401


def test_the_log_of_an_engine_holds_no_prompt_and_no_key(nixl_pair: Pair, router: RouterProcess) -> None:
    one, other = nixl_pair
    router.route(one, other, "nixl")
    router.answer("/v1/completions", {"model": MODEL, "prompt": "a very private sentence", "max_tokens": 4})
    for engine in nixl_pair:
        log = engine.log.read_text(errors="replace")
        assert "private" not in log
        assert engine.key not in log

"""KV through a shared folder behind the real router: the fallback where NIXL cannot run.

Only whole blocks are stored: of a prompt of n tokens the decode engine reads the whole blocks among the first n - 1 and
computes the rest.
"""

from __future__ import annotations

import random
import shutil

from tests.vllm.harness import BLOCK, MODEL, RealEngine, probe
from tests.vllm.router import RouterProcess

LENGTHS = (1, 2, 32, 33, 40, 65, 500, 1500)


def test_prompts_give_the_tokens_of_one_engine(example_pair: tuple[RealEngine, RealEngine], router: RouterProcess) -> None:
    prefill, decode = example_pair
    router.route(prefill, decode, "example")
    for length in LENGTHS:
        chance = random.Random(length)
        body = {"model": MODEL, "prompt": [chance.randrange(3, 2048) for _ in range(length)], "max_tokens": 16}
        body |= {"temperature": 0, "logprobs": 1}
        before = decode.by_source()
        answer = router.answer("/v1/completions", body)
        grown = {source: value - before[source] for source, value in decode.by_source().items()}
        stored = (length - 1) // BLOCK * BLOCK
        assert grown == {"external_kv_transfer": stored, "local_compute": length - stored}, f"a prompt of {length} tokens"
        for stored_prompt in decode.shared.iterdir():
            shutil.rmtree(stored_prompt)
        whole = decode.answer("/v1/completions", {**body, "cache_salt": "computed-here"})
        assert answer["choices"][0]["logprobs"]["tokens"] == whole["choices"][0]["logprobs"]["tokens"]


def test_prompts_that_share_a_beginning_and_come_twice_do_no_harm(
    example_pair: tuple[RealEngine, RealEngine], router: RouterProcess
) -> None:
    prefill, decode = example_pair
    router.route(prefill, decode, "example")
    chance = random.Random(99)
    start = [chance.randrange(3, 2048) for _ in range(40)]
    for tokens in (start, start + start[:25], start[:1], start[:1], start):  # the second needs a block the first has not
        body = {"model": MODEL, "prompt": tokens, "max_tokens": 8, "temperature": 0, "logprobs": 1}
        answer = router.answer("/v1/completions", body)
        for stored_prompt in decode.shared.iterdir():
            shutil.rmtree(stored_prompt)
        whole = decode.answer("/v1/completions", {**body, "cache_salt": "computed-here"})
        assert answer["choices"][0]["logprobs"]["tokens"] == whole["choices"][0]["logprobs"]["tokens"]


async def test_a_probe_sees_kv_move_in_both_directions(example_pair: tuple[RealEngine, RealEngine]) -> None:
    for prefill, decode in (example_pair, example_pair[::-1]):
        outcome = await probe(prefill, decode, "example")
        assert outcome.verdict.verified, outcome.verdict.reason
        assert outcome.verdict.kv_bytes is None  # this connector counts none

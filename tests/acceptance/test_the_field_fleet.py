"""`up --fleet field`: 64 simulated H100 serve Llama-70B whole, and every request of the field's size is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from stack import Answer, Stack, started, until

from controlplane.core.scenes import SCENES

MODEL = "llama-3.1-70b"
REQUESTS = 12


@pytest.fixture
def field() -> Iterator[Stack]:
    with started("field") as stack:
        yield stack


def engines(field: Stack) -> Counter[tuple[str, str, int, str]]:
    """How many engines routers know by node, kind of GPU, tensor-parallel degree and role."""
    return Counter((engine.node, engine.gpu, engine.tp, engine.role) for engine in field.model(MODEL).engines)


def test_sixteen_engines_on_eight_nodes_answer_all_requests(field: Stack) -> None:
    traffic = SCENES["field"].traffic
    expected = {(f"n{number}", "h100-sxm", 4, "mixed"): 2 for number in range(1, 9)}
    until(lambda: engines(field) == expected, what=f"the engines are {expected}")

    def ask(number: int) -> Answer:
        prompt = [1000 * number + token for token in range(traffic.prompt_tokens)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": traffic.answer_tokens, "ignore_eos": True}
        return field.ask("completions", body | {"stream": True, "stream_options": {"include_usage": True}}, timeout_s=120)

    with ThreadPoolExecutor(REQUESTS) as clients:
        answers = list(clients.map(ask, range(REQUESTS)))
    ways = [(answer.status, answer.done, answer.route["path"]) for answer in answers]
    assert ways == [(200, True, "monolithic")] * REQUESTS
    assert {answer.usage["prompt_tokens"] for answer in answers if answer.usage} == {traffic.prompt_tokens}
    assert {answer.usage["completion_tokens"] for answer in answers if answer.usage} == {traffic.answer_tokens}
    assert len({answer.route["decode"] for answer in answers}) > REQUESTS // 2

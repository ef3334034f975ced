"""Chat and completions, streamed and not, through the demonstration fleet: the way, the usage and the text are right."""

from __future__ import annotations

import pytest
from stack import Stack

PROMPT = "The KV cache of a prompt is made once, then moved, then read for every token of the answer. " * 12


def _body(path: str, model: str, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": model, "max_tokens": 24, "seed": 7, "temperature": 0}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if path == "completions":
        return body | {"prompt": PROMPT}
    return body | {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_disaggregated_text_and_usage_equal_the_monolithic_ones(demo: Stack, path: str, stream: bool) -> None:
    model = demo.model("llama-3.1-70b")
    body = _body(path, model.name, stream)
    answer = demo.ask(path, body)
    roles = {engine.id: engine.role for engine in model.engines}
    assert (answer.status, answer.done, answer.route["path"]) == (200, True, "disaggregated")
    assert (roles[answer.route["prefill"]], roles[answer.route["decode"]]) == ("prefill", "decode")
    for engine in model.engines:
        assert answer.said == demo.ask_engine(engine, path, body).said, f"{engine.role} {engine.id}"
    assert answer.text
    assert answer.usage
    assert answer.usage["completion_tokens"] <= 24


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_monolithic_model_is_served_by_one_engine(demo: Stack, path: str, stream: bool) -> None:
    model = demo.model("qwen3-8b")
    body = _body(path, model.name, stream)
    answer = demo.ask(path, body)
    assert (answer.status, answer.done, answer.route["path"]) == (200, True, "monolithic")
    assert answer.said == demo.ask_engine(model.engines[0], path, body).said


def test_different_prompts_and_seeds_give_different_text(demo: Stack) -> None:
    bodies = [
        {"model": "llama-3.1-70b", "prompt": prompt, "seed": seed, "max_tokens": 16, "ignore_eos": True}
        for prompt in (PROMPT, PROMPT + "x")
        for seed in (1, 2)
    ]
    assert len({demo.ask("completions", body).text for body in bodies}) == 4


def test_the_kv_really_moved(demo: Stack) -> None:
    def external_tokens() -> float:
        import httpx

        total = 0.0
        for engine in demo.model("llama-3.1-70b").engines:
            if engine.role == "decode":
                page = httpx.get(f"{engine.url}/metrics", trust_env=False).text
                total += sum(
                    float(line.rsplit(" ", 1)[1])
                    for line in page.splitlines()
                    if line.startswith("vllm:prompt_tokens_by_source_total") and "external_kv_transfer" in line
                )
        return total

    before = external_tokens()
    answer = demo.ask("completions", {"model": "llama-3.1-70b", "prompt": "a prompt of its own " * 50, "max_tokens": 4})
    assert answer.usage
    assert external_tokens() - before == answer.usage["prompt_tokens"]

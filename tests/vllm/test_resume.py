"""A real engine is killed in the middle of a chat: the other goes on with the same stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.vllm import harness
from tests.vllm.harness import MODEL, RealEngine
from tests.vllm.router import RouterProcess

TOKENS = 600


def test_a_chat_goes_on_when_its_engine_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    with harness.pair(tiny_model, "nixl", tmp_path) as engines, RouterProcess.started(tmp_path / "router") as router:
        harness.warm_up(*engines)
        router.route(engines[0], engines[1], "nixl", strict=False)
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me about the cache."}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        prompt_tokens = engines[0].answer("/tokenize", {"model": MODEL, "messages": body["messages"]})["count"]
        events, killed = killed_in_the_middle(router, body, engines[1])
        assert killed
        assert events[-1] == "[DONE]"
        documents = [json.loads(event) for event in events[:-1]]
        assert "error" not in {name for document in documents for name in document}
        assert len({document["id"] for document in documents}) == 1
        finished = [choice["finish_reason"] for document in documents for choice in document["choices"]]
        assert [reason for reason in finished if reason] == ["length"]
        usage = documents[-1]["usage"]
        assert usage["prompt_tokens"] == prompt_tokens
        assert usage["completion_tokens"] == TOKENS
        metrics = httpx.get(router.url + "/metrics").text
        assert "twinpool_router_resumed_total 1" in metrics


def killed_in_the_middle(router: RouterProcess, body: dict[str, Any], decode: RealEngine) -> tuple[list[str], bool]:
    """The data of all events of an answer whose decode engine is killed after the first twenty."""
    events: list[str] = []
    killed = False
    with httpx.stream("POST", router.url + "/v1/chat/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        assert f"decode={decode.id}" in response.headers["x-twinpool-route"]
        for line in response.iter_lines():
            if line:
                events.append(line.removeprefix("data: "))
            if len(events) == 20 and not killed:
                decode.process.kill()
                killed = True
    return events, killed

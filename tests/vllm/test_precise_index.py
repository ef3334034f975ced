"""The indexer and a real engine: what it foretells is what the engine finds, for texts, chats, salts and token ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.indexer_kit import Indexer, indexing
from tests.vllm import harness
from tests.vllm.harness import BLOCK, MODEL, RealEngine, wait_for

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = "The prefix of a prompt is hashed in blocks, each with all that comes before it. " * 8


def user(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": WORDS}),
    (TEXT, {"prompt": WORDS, "add_special_tokens": False}),
    (TEXT, {"prompt": list(range(500, 700))}),
    (TEXT, {"prompt": f"salted {WORDS}", "cache_salt": "team"}),
    (CHAT, {"messages": user(WORDS)}),
    (CHAT, {"messages": user(WORDS, "Indeed.", "And then?")}),
    (CHAT, {"messages": user(f"open {WORDS}"), "add_generation_prompt": False}),
]


def foretold(indexer: Indexer, engine: RealEngine, path: str, body: dict[str, Any]) -> list[Any]:
    """[prompt tokens, [tokens held, whole]]"""
    prompt, found = indexer.held({engine.id: engine.url}, body, path, salt=body.get("cache_salt", ""))
    return [prompt, list(found[engine.id])]


def test_the_engine_finds_what_the_indexer_foretells(tiny_model: Path, tmp_path: Path) -> None:
    with (
        indexing(tmp_path) as indexer,
        harness.alone(tiny_model, tmp_path, kv_events={"endpoint": indexer.endpoint}) as engine,
    ):
        wait_for(_heard(indexer, engine), 60, "the first event")
        for path, fields in REQUESTS:
            body = {"model": MODEL, "max_tokens": 1, **fields}
            before, hits = foretold(indexer, engine, path, body), engine.metric("vllm:prefix_cache_hits_total")
            usage = engine.answer(path, body)["usage"]
            assert before == [usage["prompt_tokens"], [engine.metric("vllm:prefix_cache_hits_total") - hits, True]], body
            most = (usage["prompt_tokens"] - 1) // BLOCK * BLOCK
            wait_for(lambda path=path, body=body, most=most: foretold(indexer, engine, path, body)[1][0] == most, 60, "news")


def _heard(indexer: Indexer, engine: RealEngine) -> Callable[[], bool]:
    """All that the engine holds is known, from its first batch on or after it was made to forget it."""

    def heard() -> bool:
        engine.answer(TEXT, {"model": MODEL, "prompt": [time.monotonic_ns() % 2000] * 2 * BLOCK, "max_tokens": 1})
        time.sleep(0.2)
        return bool(indexer.engine(engine.id)["whole"])

    return heard

"""What streams ask, and the exact text that must come back. Pure but for the chance that is handed in.

A simulated engine's answer follows from the KV of its prompt alone (workers.engines.simulated.content), so what a request
must be answered is computed here without any engine. Real engines are asked beforehand, one request at a time.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.simulated import content, tokenizer

SHORTEST_TOKENS, LONGEST_TOKENS = 20, 120
"""Of an answer."""
_WORDS = ("engine", "cache", "token", "pool", "prefill", "decode", "route", "lease", "north", "harbor", "seven", "lamp")
_PROMPT_WORDS = (8, 700)


@dataclass(frozen=True)
class Question:
    """One streamed request of the OpenAI API. `text` is what must come back, of exactly `tokens` tokens."""

    path: str
    body: dict[str, Any]
    text: str
    tokens: int

    def request(self, host: str) -> bytes:
        """The bytes of its HTTP/1.1 request, after whose answer the connection closes."""
        body = orjson.dumps(self.body)
        head = f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def simulated_questions(
    model: str,
    block_size: int,
    chance: random.Random,
    words: tuple[int, int] = _PROMPT_WORDS,
    answers: tuple[int, int] = (SHORTEST_TOKENS, LONGEST_TOKENS),
) -> Iterator[Question]:
    """Without end, no two alike: half of them chats. Some prompts are short enough to stay local in conditional mode.
    `words` of a prompt and tokens of `answers`: least and most."""
    number = 0
    while True:
        number += 1
        prompt = f"{number} " + " ".join(chance.choices(_WORDS, k=chance.randint(*words)))
        tokens = chance.randint(*answers)
        if chance.random() < 0.5:
            coded = tokenizer.encode(prompt)
            asked: dict[str, Any] = {"prompt": prompt}
        else:
            coded = tokenizer.encode_chat([("user", prompt)])
            asked = {"messages": [{"role": "user", "content": prompt}]}
        yield question(model, asked, tokens, simulated_text(coded, tokens, block_size))


def simulated_text(prompt: list[int], tokens: int, block_size: int) -> str:
    """What a simulated engine says greedily to these token ids, going on after the end of an answer."""
    reading = content.Reading(content.block_contents(array("I", prompt), block_size), len(prompt), block_size)
    text = ""
    for _ in range(tokens):
        drawn = content.draw(reading.state(), b"")
        reading.append(drawn.token)
        text += drawn.text
    return text


def question(model: str, asked: dict[str, Any], tokens: int, text: str) -> Question:
    """A greedy stream of exactly `tokens` tokens; `asked` holds `prompt` or `messages`."""
    body = {
        "model": model,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **asked,
    }
    return Question("/v1/chat/completions" if "messages" in asked else "/v1/completions", body, text, tokens)

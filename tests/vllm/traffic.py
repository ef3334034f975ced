"""Clients that ask the same prompts again and again, streamed, and compare each answer with what one engine alone said."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.vllm.harness import MODEL

ANSWER_TOKENS = 16
LENGTHS = (1, 33, 40, 64, 100, 150, 250, 400, 700, 1000)
CLEAR = 1e-3
"""A token whose probability is closer to the next one's than this may differ with what else is in the batch."""


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    answer: str


@dataclass
class Seen:
    exact: int = 0
    lost: list[str] = field(default_factory=list)
    routes: Counter[str] = field(default_factory=Counter)
    """Path, prefill and decode engine."""


def clear_prompts(url: str, wanted: int) -> list[Prompt]:
    """Prompts whose greedy answers have no close call in them, with these answers."""
    chance = random.Random(11)
    found: list[Prompt] = []
    for number in range(4 * wanted):
        tokens = tuple(chance.randrange(3, 2048) for _ in range(LENGTHS[number % len(LENGTHS)]))
        answer = httpx.post(url + "/completions", json={**body(tokens), "logprobs": 2}, timeout=120)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        best = [sorted(each.values(), reverse=True) for each in choice["logprobs"]["top_logprobs"]]
        if all(len(each) < 2 or each[0] - each[1] > CLEAR for each in best):
            found.append(Prompt(tokens, choice["text"]))
        if len(found) == wanted:
            break
    assert len(found) >= wanted // 2, "too few prompts have clear answers"
    return found


def body(tokens: Sequence[int]) -> dict[str, Any]:
    return {"model": MODEL, "prompt": list(tokens), "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}


@contextmanager
def flowing(url: str, prompts: Sequence[Prompt], clients: int) -> Iterator[Seen]:
    """So many clients while the block runs; each ends the request that it has open."""
    seen, over, lock = Seen(), threading.Event(), threading.Lock()

    def ask_on(client: int) -> None:
        chance = random.Random(client)
        with httpx.Client(timeout=120) as http:
            while not over.is_set():
                lost, route = _ask(http, url, chance.choice(prompts))
                with lock:
                    seen.routes[route] += 1
                    seen.exact += not lost
                    seen.lost += [lost] if lost else []

    threads = [threading.Thread(target=ask_on, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _ask(http: httpx.Client, url: str, prompt: Prompt) -> tuple[str, str]:
    """What is wrong with the answer, empty if nothing is; and the way it took."""
    route = ""
    try:
        with http.stream("POST", url + "/completions", json={**body(prompt.tokens), "stream": True}) as response:
            path, prefill, decode, _ = response.headers["x-twinpool-route"].split("; ")
            route = f"{path} {prefill.partition('=')[2]} {decode.partition('=')[2]}"
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    except httpx.HTTPError as error:
        return f"{route}: {type(error).__name__}: {error}", route
    if response.status_code != 200 or lines[-1] != "[DONE]":
        return f"{route}: {response.status_code} {lines[-1:]}", route
    events = [json.loads(line) for line in lines[:-1]]
    text = "".join(choice["text"] for event in events for choice in event.get("choices", ()))
    return ("" if text == prompt.answer else f"{route}: {text!r} instead of {prompt.answer!r}"), route

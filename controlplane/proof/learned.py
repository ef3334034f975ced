"""Questions to real engines, with the answers that they gave when they were asked one at a time.

A greedy answer is the same in any batch and on either side of a handoff unless two tokens are about equally probable
somewhere in it: numbers are added in another order then. Such answers are left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any

from controlplane.proof.questions import LONGEST_TOKENS, SHORTEST_TOKENS, Question, question
from controlplane.stack.errors import StackError

CLEAR = 1e-3
"""Least difference in log probability between a token of an answer and the next best one."""
TRIES = 6
"""Questions asked per question that is wanted."""
_PROMPT_TOKENS = (1, 600)
_TIMEOUT_S = 120.0


def learned_questions(port: int, model: str, vocabulary: int, wanted: int, chance: random.Random) -> list[Question]:
    """At least one and at most `wanted` questions with clear answers of the model that the router at `port` serves.
    `vocabulary`: token ids below it may be in a prompt. Raises StackError if none is found."""
    found: list[Question] = []
    for _ in range(TRIES * wanted):
        tokens = chance.randint(SHORTEST_TOKENS, LONGEST_TOKENS)
        prompt = [chance.randrange(3, vocabulary) for _ in range(chance.randint(*_PROMPT_TOKENS))]
        draft = question(model, {"prompt": prompt}, tokens, "")
        choice = _asked(port, draft)["choices"][0]
        if all(map(_is_clear, choice["logprobs"]["top_logprobs"])):
            found.append(question(model, {"prompt": prompt}, tokens, choice["text"]))
        if len(found) == wanted:
            break
    if not found:
        raise StackError("the engines answer no question clearly enough to compare: try another --seed")
    return found


def in_turn(questions: Sequence[Question], chance: random.Random) -> Iterator[Question]:
    """Without end, in random order. A salt of its own makes each compute its prompt anew, so that KV is handed over."""
    while True:
        asked = chance.choice(questions)
        body = {**asked.body, "cache_salt": f"{chance.getrandbits(64):x}"}
        yield Question(asked.path, body, asked.text, asked.tokens)


def _is_clear(top: dict[str, float]) -> bool:
    best = sorted(top.values(), reverse=True)
    return len(best) < 2 or best[0] - best[1] > CLEAR


def _asked(port: int, draft: Question) -> dict[str, Any]:
    body = {name: value for name, value in draft.body.items() if not name.startswith("stream")} | {"logprobs": 2}
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", draft.path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, HTTPException) as error:
        raise StackError(f"the router does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise StackError(f"an engine refuses a question: {text[:300].decode(errors='replace')}")
    document: dict[str, Any] = json.loads(text)
    return document

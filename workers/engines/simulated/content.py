"""What the KV cache of a simulated engine "contains", and the text that follows from it. Pure and deterministic.

The content of a block is a hash of its tokens chained to the content of the block before. The next token is a function of
a digest over the contents of all blocks of a sequence, its generated tokens and its seed. A decode engine computes that
digest from the contents it pulled, never from the prompt it was sent, so lost, stale or mixed KV shows as other text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from workers.engines.simulated.tokenizer import encode

MEAN_ANSWER_TOKENS = 200
SHORTEST_ANSWER_TOKENS = 8
"""Answers end by themselves after a geometric length, none shorter than this: a prefill leg ends none."""

_WORDS = (
    "a about all also an and any are area as at back base be been best both but by can case city come cost data day deep do"
    " down each else even ever fact far fast few find fine fire five flow form four free from full gain get give go good"
    " had half hand hard has have he head heat help her here high him his hold home hour how i idea if in into is it its"
    " just keep kind know land last late lead left less life like line long look loss made main make many map may mean"
    " mind more most move much must name near need new next no node not note now of off old on once one only open or other"
    " our out over own page part past path peak plan play pool port race rate read real rest rise road role room row rule"
    " run same say see seem self send set she show side site size slow so some song soon sort star step such sun take talk"
    " task team tell ten test text than that the them then they thin this time to tone too top town tree true try turn two"
    " unit up upon us use very view wait walk want warm was wave way we week well were what when wide will wind wire with"
    " word work year yes yet you zero , . , . ; :"
)


def _vocabulary() -> tuple[tuple[int, str], ...]:
    texts = [word if word in ",.;:" else f" {word}" for word in _WORDS.split()]
    coded = [(encode(text), text) for text in texts]
    return tuple((tokens[0], text) for tokens, text in coded if len(tokens) == 1)


VOCABULARY = _vocabulary()
"""(token id, its text) of everything that is ever generated: each one token of the tokenizer, so that an answer sent back
as a prompt becomes the same tokens and hits the same blocks."""

_END_BELOW = (1 << 32) // MEAN_ANSWER_TOKENS


def block_contents(tokens: array[int], block_size: int) -> list[int]:
    """The content of each block of `tokens` (array type "I"), the last perhaps partly full."""
    raw = memoryview(tokens.tobytes())
    width = block_size * tokens.itemsize
    contents: list[int] = []
    content = 0
    for start in range(0, len(raw), width):
        content = next_content(content, raw[start : start + width])
        contents.append(content)
    return contents


def next_content(before: int, tokens: bytes | memoryview) -> int:
    """The content of a block with these tokens (as machine integers) after a block with content `before`."""
    return int.from_bytes(blake2b(tokens, digest_size=8, key=before.to_bytes(8, "little")).digest(), "little")


def garbage(reason: str, blocks: Iterable[int]) -> list[int]:
    """What is read where no KV of the request is any more."""
    return [int.from_bytes(blake2b(f"{reason}:{block}".encode(), digest_size=8).digest(), "little") for block in blocks]


def digest(contents: Sequence[int], generated: Iterable[int] = ()) -> bytes:
    """The state that the next token follows from: the KV of the prompt, then each generated token."""
    state = blake2b(array("Q", contents).tobytes(), digest_size=16).digest()
    for token in generated:
        state = after(state, token)
    return state


def after(state: bytes, token: int) -> bytes:
    """The state once `token` was generated."""
    return blake2b(state + token.to_bytes(4, "little"), digest_size=16).digest()


class Drawn(NamedTuple):
    token: int
    text: str
    ends: bool
    """The model would end here."""


def draw(state: bytes, seed: bytes) -> Drawn:
    """The token that follows from `state`. Whether it ends the answer is drawn beside it, so that a caller that ignores the
    end goes on with the same text."""
    raw = int.from_bytes(blake2b(state + seed, digest_size=8).digest(), "little")
    token, text = VOCABULARY[(raw & 0xFFFFFFFF) % len(VOCABULARY)]
    return Drawn(token, text, raw >> 32 < _END_BELOW)


def seed_bytes(seed: int | None, temperature: float, index: int) -> bytes:
    """What of a request's sampling parameters shapes the text: nothing when greedy."""
    return b"" if temperature == 0 else f"{seed or 0}:{index}".encode()

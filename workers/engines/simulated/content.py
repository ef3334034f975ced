"""What the KV cache of a simulated engine "contains", and the text that follows from it. Pure and deterministic.

The content of a block is its tokens mixed, one by one, into the content of the block before. The next token is a function of
a digest over the contents of all blocks of a sequence, and of its seed. A decode engine computes that digest from the
contents it pulled, never from the prompt it was sent, so lost, stale or mixed KV shows as other text. Generated tokens go
into it as a prompt's do: asked with a text and the beginning of its answer, another engine gives the rest of that answer.
"""

from __future__ import annotations

import sys
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


_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15


def block_contents(tokens: array[int], block_size: int) -> list[int]:
    """The content of each block of `tokens`, the last perhaps partly full."""
    contents: list[int] = []
    content = 0
    for start in range(0, len(tokens), block_size):
        content = next_content(content, tokens[start : start + block_size])
        contents.append(content)
    return contents


def next_content(before: int, tokens: Iterable[int]) -> int:
    """The content of what holds these tokens behind the content `before`."""
    for token in tokens:
        before = ((before ^ token) + 1) * _FACTOR & _MASK
    return before


def garbage(reason: str, blocks: Iterable[int]) -> list[int]:
    """What is read where no KV of the request is any more."""
    return [int.from_bytes(blake2b(f"{reason}:{block}".encode(), digest_size=8).digest(), "little") for block in blocks]


class Reading:
    """What the next token of a sequence follows from: the contents of its blocks, kept up to date token by token."""

    __slots__ = ("_block_size", "_content", "_full", "_tokens")

    def __init__(self, contents: Sequence[int], tokens: int, block_size: int) -> None:
        """`contents`: of the blocks of `tokens` tokens, as they are held."""
        self._tokens, self._block_size = tokens, block_size
        self._full = blake2b(array("Q", contents[: tokens // block_size]).tobytes(), digest_size=16)
        self._content = contents[-1] if contents else 0

    def append(self, token: int) -> None:
        """`token` was generated."""
        self._tokens += 1
        self._content = next_content(self._content, (token,))
        if self._tokens % self._block_size == 0:
            self._full.update(self._content.to_bytes(8, sys.byteorder))

    def state(self) -> bytes:
        """The digest that the next token is drawn from."""
        state = self._full.copy()
        state.update(self._content.to_bytes(8, sys.byteorder))
        return state.digest()


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

"""A tokenizer without a vocabulary file: text -> token ids -> the same text. Pure.

A token is one byte, or a piece of up to four letters and digits with or without a space before it (about 3.5 characters of
English). Ids: 0..255 bytes, then a few control tokens, then pieces as base-36 numbers. Control tokens come only from the
chat template, never out of a user's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

END, ROLE_START, ROLE_END = 256, 257, 258
_FIRST_PIECE = 512
VOCABULARY = _FIRST_PIECE + 2 * 2 * 36**4
"""Number of token ids. Independent of the model's own: the text is not the model's either."""

LONGEST_TOKEN = 5
"""Characters."""

_PIECE = re.compile(r" ?[a-z0-9]{1,4}|[^a-z0-9]")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


_MOST_KNOWN = 8192
_known = {chr(byte): byte for byte in range(128) if chr(byte) not in _DIGITS}
"""Ids of pieces met before, and of ASCII characters that are pieces by themselves: most of any text, so it is not counted
out again."""


def encode(text: str) -> list[int]:
    """Token ids of any text."""
    tokens: list[int] = []
    for piece in _PIECE.findall(text):
        token = _known.get(piece)
        if token is not None:
            tokens.append(token)
        elif piece[-1] in _DIGITS:
            tokens.append(_meet(piece))
        else:
            tokens.extend(piece.encode("utf-8", "replace"))
    return tokens


def _meet(piece: str) -> int:
    # A leading 1 keeps leading zeros; the last bit says whether a space comes first.
    token = _FIRST_PIECE + 2 * int("1" + piece.lstrip(), 36) + (piece[0] == " ")
    if len(_known) < _MOST_KNOWN:
        _known[piece] = token
    return token


def decode(tokens: Iterable[int]) -> str:
    """The text of token ids; control tokens have none, and ids that no text becomes are shown as `<|id|>`."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


def token_bytes(token: int) -> bytes:
    if token < 256:
        return bytes((token,))
    if token < _FIRST_PIECE:
        return b""
    number, spaced = divmod(token - _FIRST_PIECE, 2)
    letters = _base36(number)
    if letters[0] != "1" or len(letters) < 2:
        return f"<|{token}|>".encode()
    return (" " * spaced + letters[1:]).encode()


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
        if not number:
            return digits


def encode_chat(messages: Sequence[tuple[str, str]], open_answer: bool = True, go_on: bool = False) -> list[int]:
    """(role, content) pairs in the chat template, ending where the assistant's answer begins unless told otherwise. `go_on`:
    the last message is the beginning of the answer, and ends where that goes on."""
    tokens: list[int] = []
    for role, content in messages:
        tokens += [ROLE_START, *encode(f"{role}\n{content}"), ROLE_END, 10]
    if go_on:
        return tokens[:-2]
    if open_answer:
        tokens += [ROLE_START, *encode("assistant\n")]
    return tokens

"""The question by which a pair of engines shows that KV moves from the one to the other, and what its answers prove. Pure.

A flip that did nothing still answers rightly: the decode engine just computes the prompt itself. So an answer proves
nothing by itself. The decode engine's own counters must show that most of the prompt came from another engine, and its text
must be that of the same prompt answered whole. What a decode engine says of cached tokens in its answer proves nothing
either (docs/vllm-facts.md).

The prompt is random words, so that no cache knows it, of which the first part comes again at the end: what follows is then
all but certain to a trained model, and the same on two kinds of GPU, if and only if it has the right KV.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BLOCKS = 4
"""A prompt fills about this many blocks of the KV cache."""
ANSWER_TOKENS = 2
"""Few: each takes a step of engines that others wait for, and wrong KV shows in the first."""
MOST = 0.5
"""Of a prompt's tokens, at least this share must have been moved: the last block may stay behind, and a tokenizer may cut
a prompt into fewer tokens than it has words."""
BEHIND = "it waits behind"
"""What is told of a probe that has not had its turn yet begins so."""
_TEXT = (
    "able also area army away baby back ball bank base bear beat bird blue boat body bone book born both bowl busy cake call"
    " calm card care case city clay club coal coat code cold cook copy corn cost crew crop dark data date dawn days dear"
    " deep desk door down draw drum dust duty each east edge even face fact"
)
_WORDS = tuple(_TEXT.split())


def word_count(block_size: int, max_model_len: int) -> int:
    """Words of a prompt that fills BLOCKS blocks (each is at least one token), within a third of what the model takes."""
    wanted = BLOCKS * max(1, block_size) * 2 // 3  # and half of them again
    return max(8, min(wanted, max_model_len // 6) if max_model_len else wanted)


def make_prompt(words: int, below: Callable[[int], int]) -> str:
    """`words` random words and half of them again. `below(n)`: an unguessable number from 0 to n - 1."""
    fresh = [_WORDS[below(len(_WORDS))] for _ in range(words)]
    return " ".join([*fresh, *fresh[: words // 2]])


@dataclass(frozen=True)
class Seen:
    """What one question showed. Growths are of the decode engine's counters while it was asked. Requests of others may be in
    them too; an engine that takes nothing from others has none of these either."""

    prompt_tokens: int
    pulled_tokens: float
    """Growth of its prompt tokens that came from other engines."""
    pulled_bytes: float
    """Growth of the bytes its connector counted; 0 for a connector that counts none."""
    same_text: bool


@dataclass(frozen=True)
class Verdict:
    """`reason` says what was seen. `kv_bytes`: of this prompt; None: not counted."""

    verified: bool
    reason: str
    kv_bytes: int | None = None


def judge(seen: Seen, counts_bytes: bool) -> Verdict:
    """`counts_bytes`: the connector counts what it moves."""
    tokens = seen.prompt_tokens
    if seen.pulled_tokens < 0:
        return Verdict(False, "the decode engine's counters went back: it was started anew")
    if seen.pulled_tokens < MOST * tokens:
        came = f"{seen.pulled_tokens:.0f} of {tokens} prompt tokens came from the prefill engine"
        return Verdict(False, f"no KV moved: by the decode engine's counters {came}")
    if counts_bytes and seen.pulled_bytes <= 0:
        return Verdict(False, "no KV moved: the decode engine's connector counted no bytes")
    if not seen.same_text:
        return Verdict(False, f"KV of {tokens} tokens moved, but the answer is not that of the same prompt answered whole")
    # With others' transfers in the counter, this prompt's share of the bytes.
    kv_bytes = round(seen.pulled_bytes * min(1.0, tokens / seen.pulled_tokens)) if counts_bytes else None
    size = f" ({kv_bytes:,} bytes)" if kv_bytes else ""
    return Verdict(True, f"KV of {tokens} prompt tokens{size} moved, and the text is right", kv_bytes)

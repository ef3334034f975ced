"""Token counts out of an engine's answer, without parsing the whole of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_COUNT = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|(?:cache_read_|cache_creation_)?input_tokens|output_tokens)"\s*:\s*(\d{1,15})'
)
_DETAILS = re.compile(rb'"prompt_tokens_details"\s*:\s*(?:null|\{[^{}]*\})')
_MOST = 1_000_000_000
"""No request has more tokens. Sums of what engines tell must stay within the 64 bits that processes share and rows have."""


class Usage(NamedTuple):
    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    details: dict[str, Any] | None = None
    """prompt_tokens_details as the engine gave it."""


NOT_KNOWN = Usage()


def of_document(usage: Any) -> Usage:
    """From a parsed `usage` object; anything odd in it counts as not known."""
    if not isinstance(usage, dict):
        return NOT_KNOWN
    told = usage.get("prompt_tokens_details", _NONE)
    details = usage.get("input_tokens_details") if told is _NONE else told
    if not isinstance(details, dict):
        return _of_counts(usage, usage, None)
    return _of_counts(usage, details, details)


def of_body(body: bytes) -> Usage:
    """From the bytes of a whole answer: the last `usage` in it. Inside strings the quotes would be escaped."""
    at = body.rfind(b'"usage"')
    if at < 0:
        return NOT_KNOWN
    counts = {name.decode(): int(value) for name, value in _COUNT.findall(body, at)}
    return _of_counts(counts, counts, None)


def _of_counts(counts: Mapping[str, Any], about_prompt: Mapping[str, Any], details: dict[str, Any] | None) -> Usage:
    """/v1/responses says input and output; /v1/messages too, and tells what was cached apart from the input."""
    prompt = counted(counts, "prompt_tokens")
    output = counted(counts, "completion_tokens")
    cached = counted(about_prompt, "cached_tokens")
    if prompt is not None and output is not None:
        return Usage(prompt, output, cached, details)  # of a generation, as nearly all
    if prompt is None:
        prompt = counted(counts, "input_tokens")
    if output is None:
        output = counted(counts, "output_tokens")
    read = counted(counts, "cache_read_input_tokens")
    if cached is None:
        cached = read
    if prompt is not None:
        prompt += (read or 0) + (counted(counts, "cache_creation_input_tokens") or 0)
    return Usage(prompt, output, cached, details)


_NONE = object()


def counted(counts: Mapping[str, Any], name: str) -> int | None:
    """A number of tokens that can be; None for anything else."""
    value = counts.get(name)
    return value if type(value) is int and 0 <= value <= _MOST else None


def with_details(answer: bytes, details: bytes | None) -> bytes:
    """`answer` (a whole one, or an event) with the prefill's `prompt_tokens_details` in place of the decode engine's, which
    counts the KV it pulled as cached. Unchanged if `details` is None or the engine told none."""
    at = answer.rfind(b'"usage"')
    if details is None or at < 0:
        return answer
    return answer[:at] + _DETAILS.sub(lambda _: b'"prompt_tokens_details":' + details, answer[at:], count=1)

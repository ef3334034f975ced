"""Token counts out of an engine's answer, without parsing the whole of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COUNT = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|(?:cache_read_|cache_creation_)?input_tokens|output_tokens)"\s*:\s*(\d{1,15})'
)
_DETAILS = re.compile(rb'"prompt_tokens_details"\s*:\s*(?:null|\{[^{}]*\})')


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    details: dict[str, Any] | None = None
    """prompt_tokens_details as the engine gave it."""


def of_document(usage: Any) -> Usage:
    """From a parsed `usage` object; anything odd in it counts as not known."""
    if not isinstance(usage, dict):
        return Usage()
    told = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    details = told if isinstance(told, dict) else None
    counts = {**usage, "cached_tokens": details.get("cached_tokens")} if details is not None else usage
    return _of_counts({name: count for name, count in counts.items() if type(count) is int and count >= 0}, details)


def of_body(body: bytes) -> Usage:
    """From the bytes of a whole answer: the last `usage` in it. Inside strings the quotes would be escaped."""
    at = body.rfind(b'"usage"')
    return _of_counts({name.decode(): int(value) for name, value in _COUNT.findall(body, at)}, None) if at >= 0 else Usage()


def _of_counts(counts: Mapping[str, int], details: dict[str, Any] | None) -> Usage:
    """/v1/responses says input and output; /v1/messages too, and tells what was cached apart from the input."""
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    cached = counts.get("cached_tokens", counts.get("cache_read_input_tokens"))
    if prompt is not None:
        prompt += counts.get("cache_read_input_tokens", 0) + counts.get("cache_creation_input_tokens", 0)
    return Usage(prompt, counts.get("completion_tokens", counts.get("output_tokens")), cached, details)


def with_details(answer: bytes, details: bytes | None) -> bytes:
    """`answer` (a whole one, or an event) with the prefill's `prompt_tokens_details` in place of the decode engine's, which
    counts the KV it pulled as cached. Unchanged if `details` is None or the engine told none."""
    at = answer.rfind(b'"usage"')
    if details is None or at < 0:
        return answer
    return answer[:at] + _DETAILS.sub(lambda _: b'"prompt_tokens_details":' + details, answer[at:], count=1)

"""Token counts out of an engine's answer, without parsing the whole of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_COUNT = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,15})')

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
    told = usage.get("prompt_tokens_details")
    details = told if isinstance(told, dict) else None
    cached = _count(details.get("cached_tokens")) if details is not None else None
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), cached, details)


def of_body(body: bytes) -> Usage:
    """From the bytes of a whole answer: the last `usage` in it. Inside strings the quotes would be escaped."""
    at = body.rfind(b'"usage"')
    found = {name: int(value) for name, value in _COUNT.findall(body, max(at, 0))} if at >= 0 else {}
    return Usage(found.get(b"prompt_tokens"), found.get(b"completion_tokens"), found.get(b"cached_tokens"))


def with_details(answer: bytes, details: bytes | None) -> bytes:
    """`answer` (a whole one, or an event) with the prefill's `prompt_tokens_details` in place of the decode engine's, which
    counts the KV it pulled as cached. Unchanged if `details` is None or the engine told none."""
    at = answer.rfind(b'"usage"')
    if details is None or at < 0:
        return answer
    return answer[:at] + _DETAILS.sub(lambda _: b'"prompt_tokens_details":' + details, answer[at:], count=1)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None

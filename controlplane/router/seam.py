"""One stream out of two: what a client has of an answer whose engine died, and how another engine's answer goes on from it.

Text is all that is known of what was generated, so the other engine is asked to go on from text. A model rarely breaks off
at white space, and chat templates cut it away: the prompt ends before it, and the same white space is expected back. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from controlplane.router import framing, sse
from controlplane.router.bodies import Body
from controlplane.router.usage import counted

CHAT = "/v1/chat/completions"
DEFAULT_COMPLETION_TOKENS = 16
"""What engines take for /v1/completions without max_tokens (OpenAI's API reference)."""

_ANY = frozenset({
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options",
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "user", "cache_salt",
    "priority", "logit_bias", "store", "metadata", "service_tier", "prompt_cache_key", "safety_identifier",
    "chat_template_kwargs", "reasoning_effort",
})  # fmt: skip
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "use_beam_search": (False,),
    "suffix": ("",),
}
"""Fields with the values under which the rest of an answer does not depend on more than its text. Null always will do."""


def can_resume(data: Mapping[str, Any], endpoint: str) -> bool:
    """Whether a broken stream of this request may be carried on by another engine: the rest must be what the first engine
    would have said, or as good. So: greedy, or sampled without a seed; and nothing that looks back at generated tokens
    (penalties, guided decoding, logprobs, tools). A field that is not known here means no. With stop strings engines hold
    back what could be the beginning of one, so that none begins in what was sent."""
    for name, value in data.items():
        if name not in _ANY and value is not None and not _is_one_of(value, _ONLY.get(name, ())):
            return False
    if data.get("temperature") != 0 and data.get("seed") is not None:
        return False
    options = data.get("stream_options")
    if isinstance(options, dict) and not options.keys() <= {"include_usage"}:
        return False
    if endpoint == CHAT:
        messages = data.get("messages")
        return isinstance(messages, list) and bool(messages) and _is_others(messages[-1])
    prompt = data.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(token) is int for token in prompt))


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == each and (type(value) is bool) == (type(each) is bool) for each in allowed)


def _is_others(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") != "assistant"


@dataclass(slots=True)
class Sent:
    """What a client has of a stream."""

    first: dict[str, Any]
    """Its first event: id, model and so on, which stay the same."""
    text: str = ""
    events: int = 0
    """That brought text: at least so many tokens."""
    finished: bool = False
    """It has its finish_reason."""
    usage: dict[str, Any] | None = None


def read(parts: Sequence[bytes]) -> Sent | None:
    """The stream that was sent, in its chunks; None if it holds what cannot be carried on (reasoning, tool calls, several
    choices)."""
    sent: Sent | None = None
    for event in framing.Chunked().feed(b"".join(parts)).split(sse.END):
        if not event or sse.is_comment(event):
            continue
        document = sse.document_of(event)
        choices = document.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            return None
        sent = sent or Sent(document)
        if isinstance(document.get("usage"), dict):
            sent.usage = document["usage"]
        for choice in choices:
            text = _text(choice)
            if text is None:
                return None
            sent.text += text
            sent.events += bool(text)
            sent.finished |= choice.get("finish_reason") is not None
    return sent


def _text(choice: Any) -> str | None:
    """The text of a choice of either kind of stream; None if there is more to it."""
    if not isinstance(choice, dict):
        return None
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text")
        return text if isinstance(text, str) else None
    if not isinstance(delta, dict) or any(value for name, value in delta.items() if name not in ("role", "content")):
        return None
    text = delta.get("content")
    return "" if text is None else text if isinstance(text, str) else None


def limits(data: Mapping[str, Any], endpoint: str) -> dict[str, int]:
    """The request's own limits of its output, by field."""
    told = {name: data[name] for name in ("max_tokens", "max_completion_tokens") if type(data.get(name)) is int}
    return told or ({} if endpoint == CHAT else {"max_tokens": DEFAULT_COMPLETION_TOKENS})


def continued(body: Body, endpoint: str, text: str, tokens: int, text_ids: Sequence[int] | None) -> Body | None:
    """The request for the rest: the prompt with `text`, which is `tokens` tokens and less than may be generated. None if the
    prompt is token ids and those of the text are not known."""
    data = {**body.data, **{name: limit - tokens for name, limit in limits(body.data, endpoint).items()}}
    if type(data.get("min_tokens")) is int:
        data["min_tokens"] = max(0, data["min_tokens"] - tokens)
    if endpoint == CHAT:
        if text:
            data["messages"] = [*data["messages"], {"role": "assistant", "content": text}]
            data |= {"add_generation_prompt": False, "continue_final_message": True}
    elif isinstance(data["prompt"], str):
        data["prompt"] += text
    elif text_ids is None:
        return None
    else:
        data["prompt"] = [*data["prompt"], *text_ids]
    return Body(data, b"", True, body.model, body.stream, body.asked_usage)


@dataclass(slots=True)
class Seam:
    """Makes another engine's stream the rest of the one that a client has."""

    sent: Sent
    tokens: int
    """Output tokens that are part of the other engine's prompt."""
    prompt_tokens: int | None
    """Of the client's prompt, as its first engine counted; None: what is left of the other engine's prompt."""
    expected: str
    """White space that the client has and the prompt has not: the rest must begin with it."""
    torn: bool = field(default=False)
    """The rest does not fit. Nothing of it may be sent."""

    def rewrite(self, payload: bytes) -> bytes:
        """Whole events, as the client should get them; sets `torn` instead if that cannot be."""
        out = [self._event(event) for event in payload.split(sse.END) if event]
        return b"" if self.torn else b"".join(out)

    def _event(self, event: bytes) -> bytes:
        document = sse.document_of(event)
        if not document:
            return event + sse.END  # [DONE], or a comment
        for name in ("id", "created", "model", "system_fingerprint"):
            if name in self.sent.first:
                document[name] = self.sent.first[name]
        told = False
        for choice in document.get("choices") or ():
            told |= self._choice(choice)
        if isinstance(document.get("usage"), dict):
            document["usage"] = self.total(document["usage"])
            told = True
        return b"data: %b\n\n" % orjson.dumps(document) if told else b""

    def _choice(self, choice: Any) -> bool:
        """True if there is something in it for the client."""
        text = _text(choice)
        if text is None:
            self.torn = True
            return False
        if self.expected:
            shorter = min(len(text), len(self.expected))
            if text[:shorter] != self.expected[:shorter]:
                self.torn = True
            text, self.expected = text[shorter:], self.expected[shorter:]
        if "delta" in choice:
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["text"] = text
        return bool(text) or choice.get("finish_reason") is not None

    def total(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The whole request's usage, from that of its rest."""
        prompt, output = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
        if prompt is None or output is None:
            return dict(usage)
        whole_prompt = self.prompt_tokens if self.prompt_tokens is not None else max(0, prompt - self.tokens)
        output += self.tokens
        total = {**usage, "prompt_tokens": whole_prompt, "completion_tokens": output, "total_tokens": whole_prompt + output}
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and type(details.get("cached_tokens")) is int:
            total["prompt_tokens_details"] = {**details, "cached_tokens": min(details["cached_tokens"], whole_prompt)}
        return total

    def ending(self, with_usage: bool) -> bytes:
        """The end of a stream of which only that is missing."""
        events: list[dict[str, Any]] = []
        if not self.sent.finished:
            is_chat = any("delta" in choice for choice in self.sent.first.get("choices") or ())
            choice: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
            events.append({"choices": [{"index": 0, **choice, "logprobs": None, "finish_reason": "length"}]})
        if with_usage and self.sent.usage is None:
            usage = self.total({"prompt_tokens": self.tokens, "completion_tokens": 0})
            events.append({"choices": [], "usage": usage})
        same = {name: value for name, value in self.sent.first.items() if name not in ("choices", "usage")}
        return b"".join(b"data: %b\n\n" % orjson.dumps({**same, **each}) for each in events) + sse.DONE

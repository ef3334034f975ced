"""Client bodies: parsed once, passed on as the client's own bytes wherever possible, rewritten only where needed.

New fields are spliced in before the closing brace. JSON readers of engines take the last of two equal keys, as orjson does
here, so what was judged is what the engine sees; a key that is there already makes the body be written anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from controlplane.router import fields
from controlplane.router.eras import salted
from controlplane.router.errors import bad_request
from controlplane.router.limits import Limits

PREFILL_KV = {"do_remote_decode": True, "do_remote_prefill": False}
IMAGE_TOKENS = 500
DEFAULT_OUTPUT_TOKENS = 256

# Fields with the values under which a request can be split. Any other value takes the whole path. What is not here means the
# same in both legs, or nothing to the prefill's one token: sampling, stop, logprobs, tools, response_format, cache_salt, ...
_SPLITTABLE: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "prompt_logprobs": (None,),
    "prompt_embeds": (None,),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "tool_choice": (None, "auto", "none"),
    "truncate_prompt_tokens": (None,),  # where vLLM cuts depends on max_tokens, which the legs do not share
    "routed_experts_prompt_start": (None,),  # no engine that pulls KV knows the experts of a prompt
}
_JUDGED = frozenset(_SPLITTABLE)
_LIMITS = ("max_tokens", "max_completion_tokens")
_NOT_IN_PREFILL = frozenset({*_LIMITS, "min_tokens", "stream", "stream_options"})
"""What the prefill leg goes without, or with another value."""
_STREAM_FLAGS = ("include_usage", "continuous_usage_stats")

_TRUE = (True, "1", "true", "t", "yes", "y", "on")
_FALSE = (None, False, "0", "false", "f", "no", "n", "off")

MAX_TOKEN_IDS = 1_000_000
"""A longer list of token ids fits no model, and is not looked through."""


class Body:
    """A parsed request body. `raw` is what the client sent; with `rewritten` it is no longer what `data` says."""

    __slots__ = ("asked_usage", "data", "model", "raw", "rewritten", "stream")

    def __init__(
        self, data: dict[str, Any], raw: bytes, rewritten: bool, model: str, stream: bool, asked_usage: bool
    ) -> None:
        self.data = data
        self.raw = raw
        self.rewritten = rewritten
        self.model = model
        self.stream = stream
        self.asked_usage = asked_usage
        """The client itself wants the usage chunk of a stream."""


def parse(raw: bytes, limits: Limits) -> Body:
    """Reads and cleans a body. Raises ApiError 400 for anything that is not a JSON object naming a model."""
    if len(raw) > min(limits.json_containers, limits.json_values) and _too_many_parts(raw, limits):
        raise bad_request("The JSON body has too many parts.", code="json_too_large")
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "depth limit" in str(error):
            raise fields.too_deep() from error
        raise bad_request("The body is not valid JSON.", code="invalid_json") from error
    if not isinstance(data, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    rewritten = fields.strip(data, limits.json_depth)
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("You must provide a model.", param="model", code="missing_model")
    return Body(data, raw, rewritten, model, _flag(data.get("stream")) is True, _include_usage(data) is True)


def _too_many_parts(raw: bytes, limits: Limits) -> bool:
    return raw.count(b"{") + raw.count(b"[") > limits.json_containers or raw.count(b",") > limits.json_values


def _include_usage(data: Mapping[str, Any]) -> bool | None:
    """stream_options.include_usage as engines read it (pydantic's lax bool); None: they will refuse it."""
    options = data.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        return None
    return _flag(options.get("include_usage"))


def _flag(value: Any) -> bool | None:
    """A boolean as engines read it (pydantic's lax mode); None: they will refuse it."""
    if value is None or value is False:
        return False
    if value is True:
        return True
    plain = value.lower() if isinstance(value, str) else value
    if plain in _TRUE:
        return True
    return False if plain in _FALSE else None


def check_stateless(data: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a request to /v1/responses that builds on what an engine kept: the next one is another."""
    for name in ("previous_response_id", "conversation", "background"):
        if data.get(name):
            message = f"Responses are not kept here: `{name}` is not supported. Send the whole input."
            raise bad_request(message, param=name, code="stateless_responses")


def set_model(body: Body, name: str) -> None:
    """Replaces an alias by the name that engines serve."""
    if body.model != name:
        body.model = name
        body.data["model"] = name
        body.rewritten = True


def set_field(body: Body, name: str, value: str) -> None:
    """Sets a field of the router's own, which every leg gets."""
    if name in body.data or body.rewritten:
        body.rewritten = True
    else:
        body.raw = b"%b,%b}" % (_open(body.raw), _member(name, value))
    body.data[name] = value


# --- What a decision needs -------------------------------------------------------------------------------------------------


def splittable(data: Mapping[str, Any]) -> bool:
    """Whether prefill on one engine and decode on another gives what one engine would. Doubt means False: types that an
    engine might still read as another value (`"3"` for n), lists of prompts, images, max_tokens 0."""
    if not (_JUDGED.isdisjoint(data) or all(_is_neutral(name, data[name]) for name in _JUDGED if name in data)):
        return False
    if not (_NOT_IN_PREFILL.isdisjoint(data) or _is_sound(data)):
        return False
    prompt = data.get("prompt")
    if isinstance(prompt, list) and not (len(prompt) == 1 or _token_ids(prompt)):
        return False
    return all(_text_only(message) for message in _messages(data))


def _is_neutral(name: str, value: Any) -> bool:
    return any(value is each or (type(value) is type(each) and value == each) for each in _SPLITTABLE[name])


def _is_sound(data: Mapping[str, Any]) -> bool:
    """Whether engines will take the fields that the prefill leg goes without. Else only the decode engine would refuse them,
    when KV waits for it that nobody fetches before its lease ends."""
    limit = None
    for name in _LIMITS:
        value = data.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                return False
            limit = value if limit is None else min(limit, value)
    if "min_tokens" in data:
        least = data["min_tokens"]
        if type(least) is not int or least < 0 or (limit is not None and least > limit):
            return False
    streams = _flag(data.get("stream"))
    options = data.get("stream_options")
    if streams is None or not options:
        return streams is not None and (options is None or type(options) is dict)
    return streams and type(options) is dict and all(_flag(value) is not None for value in map(options.get, _STREAM_FLAGS))


def _token_ids(prompt: list[Any]) -> bool:
    return 0 < len(prompt) <= MAX_TOKEN_IDS and all(type(token) is int for token in prompt)


def _messages(data: Mapping[str, Any]) -> list[Any]:
    messages = data.get("messages")
    return messages if isinstance(messages, list) else []


def _text_only(message: Any) -> bool:
    if not isinstance(message, dict):
        return True
    content = message.get("content")
    if not isinstance(content, list):
        return message.get("audio") is None
    return all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in content)


def prompt_tokens(data: Mapping[str, Any]) -> int:
    """A first estimate without a tokenizer: 4 characters a token; token ids are counted. At least 1."""
    prompt = data.get("prompt", data.get("input"))
    tokens = sum(_tokens_of(message.get("content")) for message in _messages(data) if isinstance(message, dict))
    return max(1, tokens + _tokens_of(prompt))


def _tokens_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // 4 + 1
    if isinstance(value, list):
        if value and type(value[0]) is int:
            return len(value)
        return sum(1 if type(item) is int else _tokens_of(item) for item in value)
    if isinstance(value, dict):
        text = value.get("text", value.get("content"))
        return len(text) // 4 + 1 if isinstance(text, str) else IMAGE_TOKENS
    return 0


def output_tokens(data: Mapping[str, Any], usual: float) -> int:
    """Expected output: what the model's requests usually take, bounded by the request's own limit."""
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    expected = int(usual)
    return max(1, min(limit, expected)) if type(limit) is int and limit > 0 else max(1, expected)


# --- What engines are sent ------------------------------------------------------------------------------------------------


def one_token_bytes(body: Body, kv_params: Mapping[str, Any] | None, salt: str = "") -> bytes:
    """A leg for its KV alone, one token and not streamed: with PREFILL_KV the prefill leg, whose KV is kept for a decode
    engine; with what that answered, a decode leg that only fetches it. `salt`: of the engine's cache era."""
    leg = dict(body.data)
    leg.pop("stream_options", None)
    leg.pop("min_tokens", None)
    leg["stream"] = False
    leg["max_tokens"] = 1
    if leg.get("max_completion_tokens") is not None:
        leg["max_completion_tokens"] = 1
    if kv_params is not None:
        leg["kv_transfer_params"] = kv_params
    if salt:
        leg["cache_salt"] = salted(salt, leg.get("cache_salt"))
    return orjson.dumps(leg)


def answer_bytes(body: Body, kv_params: Mapping[str, Any] | None = None, ask_usage: bool = True, salt: str = "") -> bytes:
    """A decode or whole leg: the client's body, with the KV parameters and, for a stream, the wish for a usage chunk.
    `salt`: of the engine's cache era."""
    extra: dict[str, Any] = {}
    if kv_params is not None:
        extra["kv_transfer_params"] = kv_params
    if salt:
        extra["cache_salt"] = salted(salt, body.data.get("cache_salt"))
    if ask_usage and body.stream and _include_usage(body.data) is False:
        options = body.data.get("stream_options") or {}
        extra["stream_options"] = {**options, "include_usage": True}
        if "continuous_usage_stats" in options:  # means nothing without include_usage, and that the client did not want
            extra["stream_options"]["continuous_usage_stats"] = False
    if body.rewritten or any(key in body.data for key in extra):
        return orjson.dumps({**body.data, **extra})
    if not extra:
        return body.raw
    return b"%b,%b" % (_open(body.raw), orjson.dumps(extra)[1:])


def _open(raw: bytes) -> bytes:
    """A JSON object without its last brace."""
    return raw[:-1] if raw.endswith(b"}") else raw[: raw.rindex(b"}")]


@lru_cache(maxsize=1024)
def _member(name: str, value: str) -> bytes:
    return b"%b:%b" % (orjson.dumps(name), orjson.dumps(value))

"""Reads the bodies of vLLM's OpenAI endpoints: JSON in, a checked Ask or an ApiError out. Pure.

Bodies are hostile. What vLLM refuses is refused with its status and shape; fields it accepts and that do not change lengths
or text here (top_p, penalties, logprobs, tools…) are accepted without effect; unknown ones are ignored, as vLLM does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from workers.engines.simulated import tokenizer
from workers.engines.simulated.generation import RemoteKv, Sampling

DEFAULT_COMPLETION_TOKENS = 16
MAX_SEQUENCES = 1024
_REMOTE_FIELDS = ("remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port")


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> bytes:
        return error_body(self.status, self.message, self.param)


class EngineAsserts(Exception):
    """A request that makes vLLM's engine core fail an assertion, which ends the whole server."""


_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "BadRequestError")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True)
class Ask:
    """What a completion or chat request wants. `prompts` are token ids; each is answered `n` times."""

    chat: bool
    prompts: tuple[array[int], ...]
    n: int
    sampling: Sampling
    stream: bool
    include_usage: bool
    echo: str
    """Text put before the answer."""
    salt: str
    hold: bool
    """Keep the KV for a peer (do_remote_decode)."""
    remote: RemoteKv | None


@dataclass(frozen=True)
class Offered:
    """What this engine offers, as far as bodies are checked against it."""

    model: str
    max_model_len: int
    handoff: bool


def read_body(raw: bytes) -> Mapping[str, Any]:
    """The JSON object of a body. Raises ApiError."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def read_ask(raw: bytes, chat: bool, offered: Offered) -> Ask:
    """A generation request. Raises ApiError, or EngineAsserts for what would end vLLM."""
    body = read_body(raw)
    check_model(body, offered)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and (not stream or not isinstance(options, dict)):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", "stream_options")
    prompts = (_chat_prompt(body, offered),) if chat else _prompts(body, offered)
    n = _whole(body, "n", 1, 1)
    if len(prompts) * n > MAX_SEQUENCES:
        raise ApiError(400, f"a request may ask for at most {MAX_SEQUENCES} sequences", "n")
    longest = max(map(len, prompts))
    if longest >= offered.max_model_len:
        raise _too_long(offered, f"{longest}")
    hold, remote = _handoff(body) if offered.handoff else (False, None)
    return Ask(
        chat=chat,
        prompts=prompts,
        n=n,
        sampling=_sampling(body, chat, offered.max_model_len - longest, n),
        stream=stream,
        include_usage=stream and isinstance(options, dict) and _flag(options, "include_usage"),
        echo=tokenizer.decode(prompts[0]) if not chat and _flag(body, "echo") else "",
        salt=_text(body, "cache_salt"),
        hold=hold,
        remote=remote,
    )


def _too_long(offered: Offered, tokens: str) -> ApiError:
    return ApiError(
        400,
        f"This model's maximum context length is {offered.max_model_len} tokens. However, your request has {tokens} input "
        "tokens. Please reduce the length of the input messages.",
        "input_tokens",
    )


def _refuse_at_sight(offered: Offered, texts: Iterable[object]) -> None:
    """Texts that cannot fit whatever their tokens are: refused before time is spent on reading them."""
    least = sum(len(text) for text in texts if isinstance(text, str)) // tokenizer.LONGEST_TOKEN
    if least >= offered.max_model_len:
        raise _too_long(offered, f"at least {least}")


def check_model(body: Mapping[str, Any], offered: Offered) -> None:
    model = body.get("model", offered.model)
    if model != offered.model:
        raise ApiError(404, f"The model `{model!s:.200}` does not exist.", "model")


def _sampling(body: Mapping[str, Any], chat: bool, room: int, n: int) -> Sampling:
    """`room`: tokens that fit behind the longest prompt; a larger max_tokens is clipped without a word, as vLLM does."""
    asked = _whole(body, "max_tokens", 0, 1) or None
    if chat:
        asked = _whole(body, "max_completion_tokens", 0, 1) or asked
    default = room if chat else DEFAULT_COMPLETION_TOKENS
    max_tokens = min(asked or default, room)
    min_tokens = _whole(body, "min_tokens", 0, 0)
    if min_tokens > (asked or room):
        raise ApiError(400, "min_tokens must be less than or equal to max_tokens", "min_tokens")
    temperature = _number(body, "temperature", 1.0)
    seed = body.get("seed")
    if seed is not None and (type(seed) is not int):
        raise ApiError(400, "seed must be a whole number", "seed")
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=_flag(body, "ignore_eos"),
        stops=_stops(body),
        stop_tokens=frozenset(_token_ids(body.get("stop_token_ids") or [], "stop_token_ids")),
        seed=seed,
        temperature=temperature,
        n=n,
    )


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise ApiError(400, "stop must be a text or a list of non-empty texts", "stop")
    return tuple(stops)


# --- prompts --------------------------------------------------------------------------------------------------------------


def _prompts(body: Mapping[str, Any], offered: Offered) -> tuple[array[int], ...]:
    """The prompt field of a completion: a text, token ids, or a list of either."""
    prompt = body.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and type(prompt[0]) is int):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of these", "prompt")
    for each in prompt:
        _refuse_at_sight(offered, [each])
    return tuple(prompt_tokens(each) for each in prompt)


def prompt_tokens(prompt: Any) -> array[int]:
    """Token ids of a text or list of ids. Raises ApiError for anything else or nothing."""
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt, "prompt")
    if not tokens:
        raise ApiError(400, "The prompt must have at least one token.", "prompt")
    return array("I", tokens)


def _token_ids(value: Any, param: str) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ApiError(400, f"{param} must hold token ids", param)
    if value and not 0 <= min(value) <= max(value) < tokenizer.VOCABULARY:
        raise ApiError(400, f"token ids must be from 0 to {tokenizer.VOCABULARY - 1}", param)
    return value


def _chat_prompt(body: Mapping[str, Any], offered: Offered) -> array[int]:
    messages = read_messages(body)
    _refuse_at_sight(offered, [text for _, text in messages])
    return array("I", chat_tokens(body, messages))


def chat_tokens(body: Mapping[str, Any], messages: Sequence[tuple[str, str]]) -> list[int]:
    """Token ids of a chat's messages, ending as the body says. Raises ApiError."""
    opened, go_on = body.get("add_generation_prompt") is not False, _flag(body, "continue_final_message")
    if opened and go_on:
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise ApiError(400, message, "continue_final_message")
    return tokenizer.encode_chat(messages, opened, go_on)


def read_messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of each chat message. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a non-empty list", "messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, "each message needs a role", "messages")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise ApiError(400, "only text content is supported by this model", "messages")
        content = "\n".join(part for part in parts if part)
    if not isinstance(content, str | None):
        raise ApiError(400, "content must be a text or a list of parts", "messages")
    return message["role"], content or ""


# --- handoff --------------------------------------------------------------------------------------------------------------


def _handoff(body: Mapping[str, Any]) -> tuple[bool, RemoteKv | None]:
    """(keep the KV for a peer, where to pull it from). vLLM merges kv_transfer_params and those inside vllm_xargs."""
    extra = body.get("vllm_xargs")
    params = body.get("kv_transfer_params") or (extra.get("kv_transfer_params") if isinstance(extra, dict) else None)
    if params is None:
        return False, None
    if not isinstance(params, dict):
        raise ApiError(400, "kv_transfer_params must be an object", "kv_transfer_params")
    if not _flag(params, "do_remote_prefill"):
        return _flag(params, "do_remote_decode"), None
    missing = [field for field in _REMOTE_FIELDS if params.get(field) is None]
    if missing:
        raise EngineAsserts(f"do_remote_prefill without {', '.join(missing)}")
    return False, _remote(params)


def _remote(params: Mapping[str, Any]) -> RemoteKv:
    texts = [params[field] for field in ("remote_engine_id", "remote_request_id", "remote_host")]
    port, blocks = params["remote_port"], params["remote_block_ids"]
    if (
        not all(isinstance(text, str) and 0 < len(text) <= 512 for text in texts)
        or not (type(port) is int and 0 < port < 65536)
        or not (isinstance(blocks, list) and all(type(block) is int and 0 <= block < 1 << 31 for block in blocks))
    ):
        raise ApiError(400, "kv_transfer_params has remote_* fields of a wrong type", "kv_transfer_params")
    engine, request, host = texts
    return RemoteKv(engine, request, tuple(blocks), host, port)


# --- fields ---------------------------------------------------------------------------------------------------------------


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", name)
    return bool(value)


def _whole(body: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise ApiError(400, f"{name} must be a whole number of at least {least}", name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ApiError(400, f"{name} must be a non-negative number", name)
    return float(value)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ApiError(400, f"{name} must be a text", name)
    return value or ""

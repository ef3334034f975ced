"""The paths of a request and the closed list of reason codes, as x-twinpool-route and telemetry give them. Pure."""

from __future__ import annotations

from enum import StrEnum


class Path(StrEnum):
    """The first word of x-twinpool-route."""

    __hash__ = str.__hash__  # that of an enum is a call of Python's, for each request counted

    WHOLE = "monolithic"
    """One engine does everything, whatever the model's mode."""
    DISAGGREGATED = "disaggregated"
    """A prefill leg on one engine, then a decode leg on another."""
    NONE = "none"
    """No engine was asked: the router answered by itself."""


class Reason(StrEnum):
    """Why a request took its path: the closed list behind `reason=` in x-twinpool-route and in telemetry."""

    __hash__ = str.__hash__  # that of an enum is a call of Python's, for each request counted

    MONOLITHIC = "monolithic"
    DISAGGREGATED = "disaggregated"
    CONDITIONAL_REMOTE = "conditional_remote"
    CONDITIONAL_SHORT = "conditional_short"
    CONDITIONAL_CACHED = "conditional_cached"
    CONDITIONAL_LOCAL = "conditional_local"
    CONDITIONAL_NO_PAIR = "conditional_no_pair"
    UNSUPPORTED_SPLIT = "unsupported_split"
    WHOLE_ENDPOINT = "whole_endpoint"
    CANARY_UNAVAILABLE = "canary_unavailable"
    PREFILL_UNAVAILABLE = "prefill_unavailable"
    DECODE_UNAVAILABLE = "decode_unavailable"
    PREFILL_LOST = "prefill_lost"
    DECODE_LOST = "decode_lost"
    KV_LOST = "kv_lost"
    NO_KV = "no_kv"
    ROUTER = "router"
    UNKNOWN_PATH = "unknown_path"
    WRONG_METHOD = "wrong_method"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    UNKNOWN_MODEL = "unknown_model"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    RATE_LIMITED = "rate_limited"
    NO_ENGINE = "no_engine"
    ENGINE_FAULT = "engine_fault"
    ENGINE_TIMEOUT = "engine_timeout"
    STOPPING = "stopping"


REASON_DOCS: dict[Reason, str] = {
    Reason.MONOLITHIC: "The model's mode is monolithic.",
    Reason.DISAGGREGATED: "The model's mode is disaggregated and a prefill and a decode engine were ready.",
    Reason.CONDITIONAL_REMOTE: "Mode conditional: uncached tokens reached both thresholds, and a split costs less waiting.",
    Reason.CONDITIONAL_SHORT: "Mode conditional: the uncached part of the prompt is under min_uncached_tokens.",
    Reason.CONDITIONAL_CACHED: "Mode conditional: the uncached share of the prompt is under min_uncached_ratio.",
    Reason.CONDITIONAL_LOCAL: "Mode conditional: one engine answers sooner, the answers it holds up meanwhile included.",
    Reason.CONDITIONAL_NO_PAIR: "Mode conditional: no prefill and decode engine that fit each other were ready.",
    Reason.UNSUPPORTED_SPLIT: "It cannot be split rightly (n > 1, a list of prompts, prompt logprobs, echo, images, …).",
    Reason.WHOLE_ENDPOINT: "This path is never split (embeddings, responses, messages, score, rerank).",
    Reason.CANARY_UNAVAILABLE: "Its session is the canary's, which had no usable engine or pair: main's engines served it.",
    Reason.PREFILL_UNAVAILABLE: "No prefill engine was usable and the model is not strict: one engine did all.",
    Reason.DECODE_UNAVAILABLE: "No decode engine was usable and the model is not strict: one engine did all.",
    Reason.PREFILL_LOST: "The prefill leg failed; on_prefill_loss let one engine compute the prompt again.",
    Reason.DECODE_LOST: "The decode leg failed before its first byte and no other decode engine was left.",
    Reason.KV_LOST: "The KV cache of the first prefill expired or could not be trusted; the prompt was computed again.",
    Reason.NO_KV: "The prefill leg left no KV to pull (it ended at its first token); the decode engine computed the prompt.",
    Reason.ROUTER: "Answered by the router itself.",
    Reason.UNKNOWN_PATH: "The path is not on the closed list.",
    Reason.WRONG_METHOD: "The path does not take this method.",
    Reason.BAD_REQUEST: "The request is malformed.",
    Reason.TOO_LARGE: "The head or the body is over its limit.",
    Reason.UNKNOWN_MODEL: "The routing table has no such model.",
    Reason.UNAUTHORIZED: "An API key is needed and was missing or wrong.",
    Reason.FORBIDDEN: "The API key does not cover this model or priority.",
    Reason.RATE_LIMITED: "The team of the API key has used up its requests or tokens of this minute.",
    Reason.NO_ENGINE: "No engine that could serve the request was usable.",
    Reason.ENGINE_FAULT: "The engines that were tried failed.",
    Reason.ENGINE_TIMEOUT: "The engine did not answer in time.",
    Reason.STOPPING: "This router is being stopped.",
}
"""One sentence per code, for operators."""

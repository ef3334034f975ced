"""Fields that a client must never hand to an engine, and where the search for them stops.

vLLM takes `kv_transfer_params` from the body and from `vllm_xargs`; a client that sends them can kill an engine. So these
keys are removed from every object of the body, at any depth, except inside the client's own material, which engines only
render or compile and where such a name is somebody's data: the content of messages, the arguments and results of tool
calls, and JSON Schemas. Strings are never looked into. The exceptions are exact places, not names: a `content` or `schema`
anywhere else is searched.
"""

from __future__ import annotations

from typing import Any

from controlplane.router.errors import ApiError, bad_request

UNSAFE_KEYS = frozenset({
    "kv_transfer_params", "ec_transfer_params", "data_parallel_rank", "data_parallel_rank_local", "dp_rank",
    "routed_dp_rank", "disagg_prefill_dp_rank", "disaggregated_params", "do_remote_prefill", "do_remote_decode",
})  # fmt: skip
UNSAFE_PREFIXES = ("bootstrap_", "data_parallel_", "kv_transfer_", "ec_transfer_")

_CONTAINERS = frozenset({dict, list})

Places = dict[str, "Places | None"]
"""Nested keys that lead to the client's own material (None). Lists on the way are stepped through."""

_TOOL: Places = {"function": {"parameters": None, "arguments": None}, "parameters": None, "input_schema": None}
_TOOLS: Places = {**_TOOL, "tools": _TOOL}
"""Tools may come in name spaces."""
CLIENTS_OWN: Places = {
    "messages": {"content": None, "tool_calls": _TOOL, "function_call": {"arguments": None}},
    "input": {"content": None, "arguments": None, "output": None},
    "prompt": None,
    "system": None,
    "documents": None,
    "tools": _TOOLS,
    "functions": {"parameters": None},
    "response_format": {"json_schema": {"schema": None}, "schema": None, "structures": {"schema": None}, "format": None},
    "output_config": {"format": {"schema": None}},
    "text": {"format": {"schema": None}},
    "structured_outputs": {"json": None},
    "guided_json": None,
}


_USUAL = frozenset({
    "model", "prompt", "messages", "role", "content", "type", "text", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "include_usage", "temperature", "top_p", "n", "stop", "seed", "user", "tools", "tool_choice",
    "function", "name", "tool_calls", "tool_call_id", "id", "response_format", "ignore_eos", "min_tokens", "input",
})  # fmt: skip
"""Harmless names, which need no closer look."""


def is_unsafe(key: str) -> bool:
    plain = key.lower().replace("-", "_")
    return plain in UNSAFE_KEYS or plain.startswith(UNSAFE_PREFIXES)


def strip(document: dict[str, Any], depth_limit: int) -> bool:
    """Removes unsafe keys from `document` in place; True if there were any. Raises ApiError if it is nested too deep."""
    found = _strip(document, CLIENTS_OWN, depth_limit, True)
    if "request_id" in document:  # engines take it for the request's key; the header says what it is
        del document["request_id"]
        return True
    return found


def _strip(value: Any, places: Places | None, depth_left: int, searching: bool) -> bool:
    if depth_left <= 0:
        raise too_deep()
    found = False
    if type(value) is dict:
        if searching and not _USUAL.issuperset(value):
            for key in [key for key in value if key not in _USUAL and is_unsafe(key)]:
                del value[key]
                found = True
        for key, item in value.items():
            if type(item) is dict or type(item) is list:
                own = searching and places is not None and key in places and places[key] is None
                inner = places.get(key) if places else None
                found |= _strip(item, inner, depth_left - 1, searching and not own)
    elif type(value) is list and not _CONTAINERS.isdisjoint(map(type, value)):
        for item in value:
            if type(item) is dict or type(item) is list:
                found |= _strip(item, places, depth_left - 1, searching)
    return found


def too_deep() -> ApiError:
    return bad_request("The JSON body is nested too deep.", code="json_too_deep")

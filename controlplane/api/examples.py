"""An example of every body that a change takes, and of every kind of refusal, for the description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BODIES: Mapping[str, Mapping[str, Any]] = {
    "register_model": {
        "name": "llama-70b",
        "source": "meta-llama/Llama-3.1-70B-Instruct",
        "config": {"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80},
        "mode": "disaggregated",
        "pools": [
            {"role": "prefill", "engines": 2, "tensor_parallel": 4, "gpu_kinds": ["h100-sxm"]},
            {"role": "decode", "engines": 2, "tensor_parallel": 4},
        ],
        "reason": "new product",
    },
    "update_model": {"slo_ttft_ms": 800, "floors": {"decode": 2}, "reason": "promised"},
    "set_mode": {"mode": "disaggregated", "split": {"prefill": 2, "decode": 6}, "reason": "long prompts"},
    "rebalance": {"pools": {"prefill": 1, "decode": 3}, "reason": "long answers in the evening"},
    "move_gpus": {"from_role": "decode", "to_role": "prefill", "gpus": 4, "to_model": "qwen3-8b", "reason": "launch"},
    "roll_out": {"engine_args": {"max_model_len": 32768}, "reason": "longer context"},
    "scale_pool": {"engines": 4, "reason": "more traffic"},
    "set_canary": {"mode": "conditional", "shared": True, "share": 0.1, "steps": [0.25, 0.5], "reason": "short prompts"},
    "update_canary": {"guardrails": {"margin": 0.02}, "reason": "stricter"},
    "promote_canary": {"reason": "it is better"},
    "freeze": {"until": "2027-01-02T00:00:00Z", "reason": "holidays"},
    "grant_model": {"until": "2027-01-02T00:00:00Z", "reason": "on call"},
    "set_planner": {"level": "approve", "floors": {"decode": 2}, "reason": "try it"},
    "modify_proposal": {"pools": {"prefill": 2, "decode": 2}, "reason": "not so much at once"},
    "reject_proposal": {"reason": "a batch ends in an hour"},
    "silence_alert": {"until": "2027-01-02T00:00:00Z", "scope": "alert", "reason": "being repaired"},
    "set_alert_rule": {"threshold": 400, "severity": "bad", "reason": "slower network"},
    "add_channel": {"name": "pager", "kind": "email", "target": "ops@example.com", "least": "bad", "reason": "night shift"},
    "update_channel": {"enabled": False, "reason": "moved"},
    "set_price": {"kind": "h100-sxm", "per_hour": "2.60", "terms": "hourly", "reason": "new contract"},
    "add_node": {"name": "node-7", "labels": {"zone": "a"}, "reason": "new rack"},
    "cordon_node": {"reason": "a fan fails"},
    "add_key": {"name": "chat", "team": "search", "models": ["llama-70b"], "requests_per_minute": 600, "days": 365},
    "rotate_key": {"overlap_hours": 24, "reason": "every quarter"},
    "add_token": {"name": "deploy-pipeline", "scopes": ["read", "write"], "days": 90},
    "add_join_token": {"node": "node-7", "hours": 1, "reason": "new rack"},
    "cancel_operation": {"reason": "not tonight"},
    "rollback_operation": {"reason": "slower than before"},
}
"""By the operation's name in the description. Those that take a reason alone may be left out."""

REASONS: Mapping[int, tuple[str, str]] = {
    400: ("invalid_fields", "pools.prefil: 'prefil' is no role: prefill, decode, mixed."),
    401: ("not_signed_in", "Authentication credentials were not provided."),
    403: ("forbidden", "scale_pool needs the role operator; vic is viewer"),
    404: ("not_found", "There is nothing at this address."),
    406: ("not_acceptable", "Could not satisfy the request Accept header."),
    409: ("busy", "operation 41 (rebalance) of ann still runs on llama-70b: wait for it, or cancel it"),
    412: ("stale", "llama-70b has changed since you read it (version 7, now 8): look again"),
    413: ("too_large", "The body has more than 2097152 bytes."),
    415: ("not_json", 'Unsupported media type "text/plain" in request.'),
    422: ("unsafe", "pool decode would have 0 engines and its floor is 1: give it that many, or lower its floor"),
    429: ("too_many", "Request was throttled. Expected available in 12 seconds."),
    503: ("unavailable", "The database does not answer; nothing was changed. Try again soon."),
    504: ("no_answer", "The agent of node-7 does not answer: see whether it runs."),
}
"""By status: a kind and what is said."""

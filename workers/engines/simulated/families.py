"""The metric families of a simulated engine: all that vLLM 0.32 shows, with its names, help texts, labels and buckets, and
the `twinpool:` gauges of its simulated GPUs. Tests compare them with a real page.

Left out are the `_created` samples (when a counter began), which no reader here uses and which double the page.
"""

from __future__ import annotations

from collections.abc import Mapping

from workers.engines.simulated.faults import KINDS

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)

_POST_S = (0.001, *_TRANSFER_S)

HISTOGRAMS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {
    "transfer_s": (
        "vllm:nixl_xfer_time_seconds",
        "Histogram of transfer duration for NIXL KV Cache transfers.",
        _TRANSFER_S,
    ),
    "transfer_bytes": (
        "vllm:nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        tuple(float(1 << power) for power in range(11, 34, 2)),
    ),
    "transfer_post_s": (
        "vllm:nixl_post_time_seconds",
        "Histogram of transfer post time for NIXL KV Cache transfers.",
        _POST_S,
    ),
    "transfer_descriptors": (
        "vllm:nixl_num_descriptors",
        "Histogram of number of descriptors per NIXL  KV Cache transfers.",
        (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000),
    ),
    "prompt_tokens": ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS),
    "generation_tokens": ("vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKENS),
    "most_generation_tokens": (
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        _TOKENS,
    ),
    "asked_n": ("vllm:request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20)),
    "asked_tokens": ("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", _TOKENS),
    "request_preemptions": (
        "vllm:request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        (1, 2, 3, 4, 5, 10, 20),
    ),
    "prefill_computed_tokens": (
        "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _TOKENS,
    ),
    "step_tokens": (
        "vllm:iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        (1, *(1 << power for power in range(3, 15))),
    ),
    "ttft_s": ("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_S),
    "itl_s": ("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_S),
    "tpot_s": (
        "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        _TOKEN_S,
    ),
    "e2e_s": ("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST_S),
    "queue_s": (
        "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        _REQUEST_S,
    ),
    "inference_s": (
        "vllm:request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        _REQUEST_S,
    ),
    "prefill_s": (
        "vllm:request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        _REQUEST_S,
    ),
    "decode_s": (
        "vllm:request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        _REQUEST_S,
    ),
}

COUNTERS: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "transfers_failed": (
        "vllm:nixl_num_failed_transfers_total",
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures. NOTE: KV expiry is tracked"
        " separately in vllm:nixl_num_kv_expired_reqs.",
        "",
        ("",),
    ),
    "notifications_failed": (
        "vllm:nixl_num_failed_notifications_total",
        "Number of failed NIXL KV Cache notifications. Retained for compatibility; these failures are also included in"
        " vllm:nixl_num_failed_transfers.",
        "",
        ("",),
    ),
    "leases_expired": (
        "vllm:nixl_num_kv_expired_reqs_total",
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.",
        "",
        ("",),
    ),
    "late_notifications": (
        "vllm:nixl_num_notifications_after_expiry_total",
        "Number of completion notifications for requests that were no longer tracked, usually because their KV lease"
        " expired. The KV blocks may have been reused before the transfer finished. Counted per notification (one per remote"
        " rank), not per request.",
        "",
        ("",),
    ),
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        "",
        ("",),
    ),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        "",
        ("",),
    ),
    "external_queries": (
        "vllm:external_prefix_cache_queries_total",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried"
        " tokens.",
        "",
        ("",),
    ),
    "external_hits": (
        "vllm:external_prefix_cache_hits_total",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
        "",
        ("",),
    ),
    "preemptions": ("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.", "", ("",)),
    "prompt": ("vllm:prompt_tokens_total", "Number of prefill tokens processed.", "", ("",)),
    "by_source": (
        "vllm:prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "prompt_cached": (
        "vllm:prompt_tokens_cached_total",
        "Number of cached prompt tokens (local + external).",
        "",
        ("",),
    ),
    "cached_by_source": (
        "vllm:prompt_tokens_cached_by_source_total",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk,"
        " p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to"
        " vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "generation": ("vllm:generation_tokens_total", "Number of generation tokens processed.", "", ("",)),
    "success": (
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
    "rejections": (
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "reason",
        ("max_num_queued_reqs", "max_num_queued_tokens"),
    ),
    "faults": (
        "twinpool:faults_total",
        "How often each fault that was asked for struck this simulated engine.",
        "fault",
        tuple(KINDS),
    ),
    "mm_queries": (
        "vllm:mm_cache_queries_total",
        "Multi-modal cache queries, in terms of number of queried items.",
        "",
        ("",),
    ),
    "mm_hits": ("vllm:mm_cache_hits_total", "Multi-modal cache hits, in terms of number of cached items.", "", ("",)),
    "estimated_flops": (
        "vllm:estimated_flops_per_gpu_total",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        "",
        ("",),
    ),
    "estimated_read": (
        "vllm:estimated_read_bytes_per_gpu_total",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        "",
        ("",),
    ),
    "estimated_write": (
        "vllm:estimated_write_bytes_per_gpu_total",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        "",
        ("",),
    ),
}
"""Key -> name, help, the label that tells samples apart and its values. What a simulated engine has no use for stays 0, as
on a vLLM without it: queue limits, pictures, MFU metrics."""

WITHOUT_ENGINE = frozenset({"rejections"})
"""Counters of the API server, not of its engine core: no label `engine`."""

GAUGES: Mapping[str, tuple[str, str, str]] = {
    "running": ("vllm:num_requests_running", "Number of requests in model execution batches.", ""),
    "waiting": ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", ""),
    "waiting_by": (
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' ="
        " deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals"
        " vllm:num_requests_waiting.",
        "reason",
    ),
    "kv_fetch": (
        "vllm:num_requests_kv_fetch_by_stage",
        "Number of waiting requests by async KV load stage. Stage labels: 'waiting_to_start' = needs an async KV load that"
        " has not started; 'in_progress' = load started and not yet reported finished; 'completed_waiting' = load finished,"
        " request not running yet.",
        "stage",
    ),
    "sleep": (
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1"
        " means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
    ),
    "kv_usage": ("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", ""),
    "tensor": ("twinpool:gpu_tensor_activity", "Tensor-core activity, average of the last second, 0 to 1.", "gpu"),
    "tensor_peak": (
        "twinpool:gpu_tensor_activity_peak",
        "Highest tensor-core activity inside the kernels of the last second, 0 to 1.",
        "gpu",
    ),
    "dram": ("twinpool:gpu_dram_activity", "Share of DRAM bandwidth used, average of the last second, 0 to 1.", "gpu"),
    "memory": ("twinpool:gpu_memory_used_bytes", "Memory taken on the GPU.", "gpu"),
    "power": ("twinpool:gpu_power_watts", "Power drawn by the GPU.", "gpu"),
}

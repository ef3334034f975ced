"""The metrics of a simulated engine: vLLM's families with their names, types, labels and buckets, then `twinpool:` gauges.

Names, help texts and buckets are those of a real metrics page (vLLM 0.32); tests compare them with one.
"""

from __future__ import annotations

from collections.abc import Mapping

from workers.engines.simulated.prometheus import Counter, Histogram, head, labelled

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)

_HISTOGRAMS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {
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
    "prompt_tokens": ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS),
    "generation_tokens": ("vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKENS),
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

_COUNTERS: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "transfers_failed": (
        "vllm:nixl_num_failed_transfers_total",
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures. NOTE: KV expiry is tracked"
        " separately in vllm:nixl_num_kv_expired_reqs.",
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
    "generation": ("vllm:generation_tokens_total", "Number of generation tokens processed.", "", ("",)),
    "success": (
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
}

_GAUGES: Mapping[str, tuple[str, str, str]] = {
    "running": ("vllm:num_requests_running", "Number of requests in model execution batches.", ""),
    "waiting": ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", ""),
    "waiting_by": (
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' ="
        " deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals"
        " vllm:num_requests_waiting.",
        "reason",
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

Gauges = Mapping[str, float | Mapping[str, float]]
"""Per key of the gauge table: its value, or its values by label value."""


class Measures:
    """All counters and histograms of one engine. `counters[key][label value]`, label value "" where there is none."""

    def __init__(self, model: str, cache_config: Mapping[str, str]) -> None:
        own = {"engine": "0", "model_name": model}
        self.counters = {
            key: {value: Counter(name, {**own, **({label: value} if label else {})}) for value in values}
            for key, (name, _, label, values) in _COUNTERS.items()
        }
        self.histograms = {key: Histogram(name, own, bounds) for key, (name, _, bounds) in _HISTOGRAMS.items()}
        self._heads = {key: head(name, "histogram", text) for key, (name, text, _) in _HISTOGRAMS.items()}
        self._heads |= {key: head(name, "counter", text) for key, (name, text, *_) in _COUNTERS.items()}
        self._own = own
        self._cache_config = (
            head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
            + f"vllm:cache_config_info{labelled({**cache_config, 'engine': '0'})} 1.0\n"
        )

    def add(self, key: str, amount: float, label: str = "") -> None:
        self.counters[key][label].value += amount

    def observe(self, key: str, value: float) -> None:
        self.histograms[key].observe(value)

    def page(self, gauges: Gauges) -> str:
        """The whole metrics page."""
        parts = [self._gauge(key, value) for key, value in gauges.items()]
        parts += [self._heads[key] + histogram.text() for key, histogram in self.histograms.items()]
        for key, samples in self.counters.items():
            parts.append(self._heads[key] + "".join(sample.text() for sample in samples.values()))
        parts.append(self._cache_config)
        return "".join(parts)

    def _gauge(self, key: str, value: float | Mapping[str, float]) -> str:
        name, text, label = _GAUGES[key]
        own = {} if label == "gpu" else self._own
        values = value if isinstance(value, Mapping) else {"": value}
        lines = (
            f"{name}{labelled({**own, **({label: each} if label else {})})} {float(number)}\n"
            for each, number in values.items()
        )
        return head(name, "gauge", text) + "".join(lines)

"""When an engine counts what: the moments at which vLLM 0.32 counts, in terms of generations and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.core.batching import Request
from workers.engines.simulated.generation import Generation
from workers.engines.simulated.measures import Measures
from workers.engines.simulated.settings import Settings


class Pulled(NamedTuple):
    """What one pull took: from the decision to the last byte, and of that until the transfer was under way."""

    blocks: Sequence[int]
    moved_bytes: int
    seconds: float
    post_s: float


class Accounts:
    """Counts into `measures`. Times are of the engine's clock."""

    def __init__(self, settings: Settings) -> None:
        self.measures = Measures(settings.model, _cache_config(settings))
        self._handoff, self._layers = settings.handoff, settings.perf.shape.layers

    def admitted(self, generation: Generation, now: float) -> None:
        """It is in a batch for the first time."""
        self.measures.observe("queue_s", max(0.0, now - generation.arrived))

    def looked_up(self, request: Request) -> None:
        """The prefix cache was asked for a request's prompt."""
        self.measures.add("prefix_queries", request.prompt_tokens)
        self.measures.add("prefix_hits", request.local_hit_tokens)
        self.measures.add("cached_by_source", request.local_hit_tokens, "device")
        if self._handoff:
            self.measures.add("external_queries", request.prompt_tokens - request.local_hit_tokens)

    def pulled(self, request: Request, pulled: Pulled) -> None:
        observe, add = self.measures.observe, self.measures.add
        observe("transfer_s", pulled.seconds)
        observe("transfer_post_s", pulled.post_s)
        observe("transfer_bytes", pulled.moved_bytes)
        # One descriptor for each layer and run of neighbouring blocks, which NIXL merges.
        runs = sum(1 for before, block in zip([-2, *pulled.blocks], pulled.blocks, strict=False) if block != before + 1)
        observe("transfer_descriptors", runs * self._layers)
        add("external_hits", request.external_tokens)
        add("cached_by_source", request.external_tokens, "p2p")

    def step(self, sampled: Sequence[Generation]) -> None:
        """A step gave each of `sampled` a token. As vLLM, a prompt counts whole, in the step that ends it."""
        if sampled:
            tokens = sum(1 if each.first_token else 1 + _computed(each.request) for each in sampled)
            self.measures.observe("step_tokens", tokens)

    def token(self, generation: Generation, now: float) -> None:
        """One more token; sets its times."""
        if generation.first_token:
            self.measures.observe("itl_s", now - generation.last_token)
        else:
            generation.first_token = now
            self.measures.observe("ttft_s", now - generation.arrived)
            self._prompt(generation.request)
        generation.last_token = now
        self.measures.add("generation", 1)

    def _prompt(self, request: Request) -> None:
        add, here = self.measures.add, request.local_hit_tokens
        add("prompt", request.prompt_tokens)
        add("prompt_cached", here + request.external_tokens)
        add("by_source", here, "local_cache_hit")
        add("by_source", request.external_tokens, "external_kv_transfer")
        add("by_source", _computed(request), "local_compute")

    def finished(self, generation: Generation, reason: str) -> None:
        observe, request = self.measures.observe, generation.request
        first, last, scheduled = generation.first_token, generation.last_token, generation.scheduled
        generated = request.generated
        self.dropped(reason)
        observe("prompt_tokens", generation.prompt_tokens)
        # As vLLM: what a peer sent is not taken off.
        observe("prefill_computed_tokens", generation.prompt_tokens - request.local_hit_tokens)
        observe("generation_tokens", generated)
        observe("most_generation_tokens", generated)
        observe("asked_tokens", generation.sampling.max_tokens)
        observe("asked_n", generation.sampling.n)
        observe("request_preemptions", request.preemptions)
        observe("e2e_s", last - generation.arrived)
        observe("inference_s", last - scheduled)
        observe("prefill_s", first - scheduled)
        observe("decode_s", last - first)
        observe("tpot_s", (last - first) / (generated - 1) if generated > 1 else 0.0)

    def dropped(self, reason: str) -> None:
        """A request ended; without having finished if it is counted here alone."""
        self.measures.add("success", 1, reason)


def _computed(request: Request) -> int:
    """Prompt tokens that were neither found here nor sent by a peer."""
    return request.prompt_tokens - request.local_hit_tokens - request.external_tokens


def _cache_config(settings: Settings) -> dict[str, str]:
    """The labels of vllm:cache_config_info that describe a simulated cache."""
    limits = settings.limits
    return {
        "block_size": str(limits.block_size),
        "cache_dtype": settings.kv_dtype,
        "enable_prefix_caching": str(limits.prefix_caching),
        "gpu_memory_utilization": str(settings.gpu_memory_utilization),
        "kv_cache_layout": "None",
        "kv_cache_size_tokens": str(limits.num_blocks * limits.block_size),
        "num_gpu_blocks": str(limits.num_blocks),
    }

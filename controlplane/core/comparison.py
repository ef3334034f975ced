"""What one engine gives under a steady load, by AIConfigurator's conventions, so that modes can be compared. Pure.

These are averages of a closed loop, not a queue: every engine holds `batch` requests all the time. They answer "which mode,
which shapes" and agree with a public tool that measures kernels; what users will see at a given rate is the forecast's
matter (core/forecast.py). The factors between kernel times and a service are experience, not physics, and the winner
depends on them, so each is a named field of `Conventions` that can be replaced.

Source of every convention, default and grid: github.com/ai-dynamo/aiconfigurator (Apache-2.0), main after version 0.11.0,
commit 095f58a; functions in backquotes are its. Followed but for three things: a decode step is taken at its mean context,
where the tool takes every 32nd step (and so contexts that are 15 tokens shorter on average); how much KV fits beside
weights and activations is what core/perf says; prompts are not cut between steps. KV transfer is in none of these figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from controlplane.core.perf import PhaseModel

USUAL_CHUNK = 8192
"""Prompt tokens of a mixed step up to which chunks are tried (`max_normal_ctx_tokens`)."""
SMALLEST_CHUNK = 512
MAX_TOKENS = 10_000_000
"""Of a prompt or an answer. More is a slip of the hand."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of a request. Raises ValueError for what cannot be split: an answer of one token has no decode phase."""

    prompt: int
    output: int
    cached: int = 0
    """Of the prompt, found in the prefix cache."""

    def __post_init__(self) -> None:
        if not 1 <= self.prompt <= MAX_TOKENS:
            raise ValueError(f"a prompt must have 1 to {MAX_TOKENS:,} tokens, got {self.prompt}")
        if not 2 <= self.output <= MAX_TOKENS:
            raise ValueError(f"an answer must have 2 to {MAX_TOKENS:,} tokens to be compared, got {self.output}")
        if not 0 <= self.cached < self.prompt:
            raise ValueError(f"cached tokens must be 0 to {self.prompt - 1} (one less than the prompt), got {self.cached}")

    @property
    def new(self) -> int:
        """Prompt tokens that must be computed."""
        return self.prompt - self.cached

    @property
    def total(self) -> int:
        """Tokens whose KV a request holds at its end."""
        return self.prompt + self.output

    @property
    def mean_context(self) -> float:
        """Of a decode step."""
        return self.prompt + self.output / 2


_POSITIVE = frozenset(
    (
        "queue_base",
        "queue_most",
        "memory_share",
        "prefill_latency",
        "decode_latency",
        "prefill_rate",
        "decode_rate",
        "split_ttft",
    )
)


@dataclass(frozen=True)
class Conventions:
    """How step times become TTFT, TPOT and throughput.

    One engine that serves whole requests runs K = ceil(batch * prompt / chunk) mixed steps for every `output` steps, and a
    prompt waits: TTFT = (mixed step * steps of a prompt + dispatch) * queue, where
    queue = min(queue_most, queue_base + queue_per_doubling * log2(batch) + queue_per_mixed_step * K).
    """

    backend: str
    queue_base: float
    queue_per_doubling: float
    """By how much TTFT grows with every doubling of the batch."""
    queue_per_mixed_step: float
    queue_most: float
    dispatch_layer_s: float
    """Host time to send a prompt's kernels, per layer: seconds."""
    drained_steps: int
    """Mixed steps that do not count for TPOT, because new prompts enter late (`_tpot_mix_steps`)."""
    decodes_yield: bool
    """When prefill takes all steps, fewer requests decode than the batch has room for (`_mix_step_gen_tokens`)."""
    littles_law: bool
    """Throughput is at most batch / time of a request (`_throughput_cap`)."""
    memory_share: float
    """Of GPU memory that the engine may fill."""
    memory_share_of: Literal["all", "free"]
    """Share of all memory, or of what weights and activations leave for KV."""
    prefill_latency: float = 1.1
    """Prefill pool: time of a prompt / kernel time (`prefill_latency_correction`)."""
    decode_latency: float = 1.08
    """Decode pool: time of a step / kernel time (`decode_latency_correction`)."""
    prefill_rate: float = 0.9
    """Share of a prefill pool's rate that is reached: bubbles between prompts (`rate_match_prefill_degradation`)."""
    decode_rate: float = 0.92
    """Share of a decode pool's rate that is reached: slots that are empty (`rate_match_decode_degradation`)."""
    split_ttft: float = 1.8
    """Prefill pool: TTFT / time of a prompt, for queueing (`autoscale_ttft_correction_factor`: "with N=10 batches and local
    concurrency 15-20"). No law: with Poisson arrivals at 0.9 load the mean is x5.2 for one engine and x1.25 for twelve."""

    def __post_init__(self) -> None:
        for name, value in self.factors.items():
            if not math.isfinite(value) or value < 0 or (value == 0 and name in _POSITIVE):
                raise ValueError(
                    f"convention {name} must be a {'positive' if name in _POSITIVE else 'finite'} number, got {value}"
                )
        if self.memory_share > 1:
            raise ValueError(f"convention memory_share must be at most 1, got {self.memory_share}")

    @property
    def factors(self) -> dict[str, float]:
        """Every number by its name, as shown beside results that rest on them."""
        return {field.name: value for field in fields(self) if isinstance(value := getattr(self, field.name), float | int)}

    def queue(self, batch: int, mixed_steps: int) -> float:
        """TTFT of one of `batch` requests / its own prefill time."""
        grown = self.queue_base + self.queue_per_doubling * math.log2(batch) + self.queue_per_mixed_step * mixed_steps
        return min(self.queue_most, grown)


VLLM = Conventions(
    backend="vllm",
    queue_base=1.0,
    queue_per_doubling=1 / 8,
    queue_per_mixed_step=0.0,
    queue_most=2.0,
    dispatch_layer_s=0.8e-3,
    drained_steps=0,
    decodes_yield=False,
    littles_law=True,
    memory_share=0.92 * 0.98,
    memory_share_of="all",
)
"""`vllm_backend.py`: TTFT x (1 + log2(b) / 8) up to 2, 0.8 ms per layer, Little's law; memory share 0.92 less 2%."""
TRTLLM = Conventions(
    backend="trtllm",
    queue_base=2 - 3 / 20,
    queue_per_doubling=0.0,
    queue_per_mixed_step=1 / 20,
    queue_most=4.0,
    dispatch_layer_s=0.0,
    drained_steps=3,
    decodes_yield=True,
    littles_law=False,
    memory_share=0.9 * 0.985 * 0.98,
    memory_share_of="free",
)
"""`base_backend.py` and `trtllm_backend.py`: TTFT x (2 + (K - 3) / 20) up to 4, three mixed steps drained, 90% of free
memory for KV less 1.5% for its allocator and 2%."""
CONVENTIONS: Mapping[str, Conventions] = {"vllm": VLLM, "trtllm": TRTLLM}


class Aggregated(NamedTuple):
    """One engine that serves whole requests."""

    ttft_s: float
    tpot_s: float
    requests_per_second: float


class Stage(NamedTuple):
    """One engine of a pool. `seconds`: TTFT of a prefill engine, TPOT of a decode engine. The rate is already degraded."""

    seconds: float
    requests_per_second: float


def chunks(lengths: Lengths) -> tuple[int, ...]:
    """Prompt tokens per mixed step that AIConfigurator tries without chunked prefill: whole prompts, from one per step up to
    max(8,192, two prompts) tokens, in strides of at least 512 (`_agg_ctx_tokens_list`)."""
    most = max(USUAL_CHUNK, 2 * lengths.prompt)
    stride = -(-SMALLEST_CHUNK // lengths.prompt) * lengths.prompt
    return tuple(sorted({lengths.prompt, 2 * lengths.prompt, *range(stride, most + 1, stride)}))


def aggregated(model: PhaseModel, lengths: Lengths, batch: int, chunk: int, conventions: Conventions) -> Aggregated:
    """What an engine gives that always holds `batch` requests and computes `chunk` prompt tokens, a whole number of
    prompts, in each mixed step (`run_agg`). The batch must be larger than the prompts of a step, or both one.

    Tokens/s of this mode leave the first token out (output - 1 per request), as there.
    """
    prompts = max(1, chunk // lengths.prompt)
    mixed_steps = -(-batch // prompts)
    decode_steps = max(0, lengths.output - mixed_steps)
    mixed = model.step([(lengths.new, lengths.cached)] * prompts, *_decodes(lengths, batch, prompts, conventions)).seconds
    decode = model.decode(batch, lengths.mean_context).seconds if decode_steps else 0.0
    counted = mixed_steps
    if batch == 1:
        counted = 0
    elif decode_steps and conventions.drained_steps:
        counted = max(1, mixed_steps - conventions.drained_steps)
    ttft = (mixed + conventions.dispatch_layer_s * model.shape.layers) * conventions.queue(batch, mixed_steps)
    tpot = (counted * mixed + decode_steps * decode) / (counted + decode_steps)
    rate = batch / (mixed_steps * mixed + decode_steps * decode)
    if conventions.littles_law:
        rate = min(rate, batch / (ttft + tpot * (lengths.output - 1)))
    return Aggregated(ttft, tpot, rate)


def _decodes(lengths: Lengths, batch: int, prompts: int, conventions: Conventions) -> tuple[int, float]:
    """Sequences that decode beside the prompts of a mixed step, and the sum of their contexts."""
    if batch == 1:
        return 0, 0.0
    count = max(1, batch - prompts)
    mixed_steps = -(-batch // prompts)
    if conventions.decodes_yield and mixed_steps >= lengths.output:
        count = max(1, int(batch * lengths.output / mixed_steps))
    return count, count * lengths.mean_context


def prefill(model: PhaseModel, lengths: Lengths, batch: int, conventions: Conventions) -> Stage:
    """A prefill engine that computes `batch` prompts at once, back to back (`run_static`, mode static_ctx)."""
    seconds = model.prefill(lengths.new, lengths.cached, batch).seconds * conventions.prefill_latency
    return Stage(seconds * conventions.split_ttft, batch / seconds * conventions.prefill_rate)


def decode(model: PhaseModel, lengths: Lengths, batch: int, conventions: Conventions) -> Stage:
    """A decode engine that always holds `batch` requests (`run_static`, mode static_gen)."""
    seconds = model.decode(batch, lengths.mean_context).seconds * conventions.decode_latency
    return Stage(seconds, batch / (seconds * (lengths.output - 1)) * conventions.decode_rate)


def kv_tokens(model: PhaseModel, batched_tokens: int, conventions: Conventions) -> int:
    """Tokens of KV an engine may hold whose steps have up to `batched_tokens`. Raises DoesNotFit, saying by how many GB."""
    if conventions.memory_share_of == "all":
        return model.kv_capacity_tokens(conventions.memory_share, batched_tokens)
    return int(model.kv_capacity_tokens(1.0, batched_tokens) * conventions.memory_share)

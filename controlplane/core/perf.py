"""How long one engine step takes, how busy it keeps the GPUs, and how much KV fits beside the weights. Pure.

One step runs any mix of prefill chunks and decode sequences. Formulas: the project's physics notes; what they reach against
measurements: docs/model-accuracy.md. Figures that rest on anything not measured say so (`PhaseModel.guesses`). Times in
seconds, sizes in bytes, shares 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.core import kvsize
from controlplane.core.gpus import CURRENT, EXPERT_COSTS, LONG_MESSAGE_TOKENS, Basis, ExpertCosts, Gpu, Stack
from controlplane.core.perfterms import Terms, terms
from controlplane.core.shapes import Shape

TILE_ROWS = 128
"""Tensor cores multiply whole tiles: the pipe is as busy with 1 row as with 128."""
PREFILL_CLOCK = 0.82
DECODE_CLOCK = 1.08
"""Clock under load / nominal clock. Assumptions, not measured: dense prefill runs into the power limit, decode does not."""
RUNTIME_BYTES = 1.5e9
"""GPU memory of the CUDA context, graphs and communication buffers. A guess."""
IDLE_POWER = 0.12
"""Share of the board limit that an idle GPU draws. A guess."""


class DoesNotFit(ValueError):
    """The model cannot run on these GPUs; the message says why and, for memory, by how much."""


class StepCost(NamedTuple):
    """One step. tensor: tensor-pipe activity (FLOPs with rows rounded up to whole tiles ÷ peak at the phase's clock; decode
    attention, which waits for bytes, is not counted), averaged over the step; tensor_peak: the same inside linear and
    prefill attention kernels only; dram: bytes moved ÷ peak bandwidth; mfu: useful FLOPs ÷ nominal peak. All per GPU,
    averages over the step unless said otherwise."""

    seconds: float
    tensor: float
    tensor_peak: float
    dram: float
    mfu: float


class DecodeLine(NamedTuple):
    """Steps of a fixed number of decode sequences, as a line in the sum of their contexts: a step costs `base_s +
    per_token_s * context_sum` seconds, exactly as `PhaseModel.step` says, while context_sum < `until_context` (infinite
    where the line never bends). `*_s` of tensor and DRAM are busy seconds: activity times seconds, before a step caps its
    activity at 1 (whole tiles of few rows can ask for more FLOPs than fit a step whose bytes are quick)."""

    base_s: float
    per_token_s: float
    until_context: float
    tensor_s: float
    dram_base_s: float
    dram_per_token_s: float


@dataclass(frozen=True)
class PhaseModel:
    """A model on `tensor_parallel` GPUs of one kind. Raises DoesNotFit for an impossible tensor-parallel degree."""

    shape: Shape
    gpu: Gpu
    tensor_parallel: int
    kv_dtype: str | None = None
    stack: Stack = CURRENT
    experts: ExpertCosts = EXPERT_COSTS
    _terms: Terms = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tp = self.tensor_parallel
        if tp < 1 or not self.shape.splits_over(tp):
            heads = f"{self.shape.heads} attention heads ({self.shape.kv_heads} KV heads)"
            raise DoesNotFit(
                f"{heads} cannot be split over {tp} GPUs; degrees that can: {', '.join(map(str, self.shape.degrees()))}"
            )
        constants = terms(self.shape, self.gpu, tp, self.kv_dtype, self.stack, self.experts)
        object.__setattr__(self, "_terms", constants)

    @property
    def basis(self) -> Basis:
        """Whether the efficiencies behind every figure were calibrated for this case or are a guess."""
        return "guess" if self.guesses else "calibrated"

    @property
    def guesses(self) -> tuple[str, ...]:
        """Why the figures are a guess, one sentence each; empty: calibrated."""
        shape, gpu, stack = self.shape, self.gpu, self.stack
        model_types = {model_type for model_type, _ in stack.host_layer_s or ()}
        found = {
            f"the efficiencies of {gpu.name} are borrowed from h100-sxm, not measured": gpu.basis == "guess",
            "expert imbalance and token exchange are assumed, not measured": any(group.experts for group in shape.mlp),
            "attention other than full causal was not measured": any(g.kind != "full" for g in shape.attention),
            "FP8 products are taken to be as efficient as bf16 ones": shape.compute_bits == 8,
            f"{self.tensor_parallel} GPUs need links between servers, which were not measured": (
                self.tensor_parallel > gpu.server_gpus
            ),
            f"the host's share in the {stack.name} stack was not measured for {shape.model_type} models": (
                bool(model_types) and shape.model_type not in model_types
            ),
        }
        return tuple(reason for reason, holds in found.items() if holds)

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes of one token in the whole engine: what a transfer moves, full windows and states apart."""
        return kvsize.transfer_bytes_per_token(self.shape, self.kv_dtype)

    @property
    def kv_token_bytes_per_gpu(self) -> int:
        """KV bytes that an engine reserves for one token on each GPU."""
        return kvsize.reserved_bytes_per_token_per_gpu(self.shape, self.tensor_parallel, self.kv_dtype)

    def prefill(self, tokens: int, past: int = 0, batch: int = 1) -> StepCost:
        """One step that computes `tokens` new prompt tokens of each of `batch` sequences, after `past` cached ones."""
        return self.step([(tokens, past)] * batch, 0, 0)

    def decode(self, batch: int, context: float) -> StepCost:
        """One step that gives `batch` sequences a token each; their contexts are `context` tokens on average."""
        return self.step((), batch, batch * context)

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: float) -> StepCost:
        """One step of `prefills`, each (new tokens, tokens before them), and `decodes` sequences whose contexts sum to
        `context` tokens. Counts must not be negative; an empty step reads the weights and costs its launch."""
        t, stack = self._terms, self.stack
        new, attention_flops = decodes, 0.0
        for tokens, past in prefills:
            new += tokens
            attention_flops += t.prefill_attention_flops(tokens, past)
        work = self._work(new, decodes + len(prefills))
        kv_s = kv_bytes = kv_flops = 0.0
        if decodes:
            segment = t.segment(context / decodes)
            kv_s = segment.base_s * decodes + segment.slope_s * context
            kv_bytes = segment.base_bytes * decodes + segment.slope_bytes * context
            kv_flops = segment.base_flops * decodes + segment.slope_flops * context
        attention_s = attention_flops / t.attention_rate
        kernels_s, inside_s = work.kernels_s + attention_s + kv_s, work.linear_s + attention_s
        other_s, host_s, clock = work.other_s, t.host_s, DECODE_CLOCK
        if new > decodes:
            kernels_s, inside_s = kernels_s * stack.prefill, inside_s * stack.prefill
            other_s, host_s, clock = other_s + t.collective_prefill_s, t.host_prefill_s, PREFILL_CLOCK
        gpu_s = kernels_s + other_s
        seconds = max(gpu_s, host_s, stack.overlap * (gpu_s + host_s)) + t.sequence_s * decodes
        busy_s = (work.tile_flops + attention_flops) / (t.engine_peak * clock)
        return StepCost(
            seconds,
            min(1.0, busy_s / seconds),
            min(1.0, busy_s / inside_s),
            min(1.0, (work.dram_bytes + kv_bytes) / (self.gpu.dram_bytes * seconds)),
            (work.row_flops + attention_flops + kv_flops) / (t.engine_peak * seconds),
        )

    def decode_line(self, sequences: int, context_sum: float = 0.0) -> DecodeLine:
        """`step` of `sequences` decodes (at least one) as the line that it is around `context_sum`."""
        t, stack, dram = self._terms, self.stack, self.gpu.dram_bytes
        segment = t.segment(context_sum / sequences)
        work = self._work(sequences, sequences)
        gpu_s = work.kernels_s + work.other_s + segment.base_s * sequences
        share, constant_s, bend_s = stack.line(gpu_s + segment.slope_s * context_sum, t.host_s)
        bend = (bend_s - gpu_s) / segment.slope_s if segment.slope_s and bend_s < math.inf else math.inf
        return DecodeLine(
            base_s=share * gpu_s + constant_s + t.sequence_s * sequences,
            per_token_s=share * segment.slope_s,
            until_context=min(segment.until * sequences, bend),
            tensor_s=work.tile_flops / (t.engine_peak * DECODE_CLOCK),
            dram_base_s=(work.dram_bytes + segment.base_bytes * sequences) / dram,
            dram_per_token_s=segment.slope_bytes / dram,
        )

    def _work(self, new: int, sampled: int) -> _Work:
        """What a step does for `new` tokens of any kind, of which `sampled` pass the output head, besides attention."""
        t = self._terms
        rows = new + self.gpu.efficiency.rows_half if new else 0
        weight_bytes, row_flops = t.dense_bytes, t.dense_flops * new
        tile_flops = t.dense_flops * TILE_ROWS * -(-new // TILE_ROWS)
        linear_s = max(t.dense_flops * rows / t.linear_rate, t.dense_bytes / t.weight_rate)
        for group in t.experts:
            touched, routed = group.touched(new), new * group.chosen
            read_bytes = group.bytes * touched / group.experts
            padded = routed * t.imbalance + self.gpu.efficiency.rows_half * touched
            linear_s += max(group.flops * padded / t.linear_rate, read_bytes / t.weight_rate)
            weight_bytes += read_bytes
            row_flops += group.flops * routed
            tile_flops += group.flops * max(TILE_ROWS * touched, routed)
        head_s = max(t.head_bytes / t.weight_rate, t.head_flops * sampled / t.bf16_rate)
        moved = t.elementwise_bytes * new
        message_s = t.message_s * new * (t.long_message if new > LONG_MESSAGE_TOKENS else 1.0)
        return _Work(
            linear_s,
            linear_s + head_s + moved / t.elementwise_rate,
            t.collective_s + message_s + t.launch_s,
            row_flops + t.state_flops * new,
            tile_flops,
            (weight_bytes + t.head_bytes) / self.tensor_parallel + moved,
        )

    def kv_capacity_tokens(self, memory_utilization: float, batched_tokens: int, layers_share: float = 1.0) -> int:
        """Tokens of KV cache that fit beside the weights, what the runtime needs and the activations of a step of
        `batched_tokens`, on GPUs that have this share of the layers. Raises DoesNotFit, which says by how many GB."""
        shape, tp = self.shape, self.tensor_parallel
        activations = batched_tokens * self._terms.activation_bytes
        usable = self.gpu.memory_bytes * memory_utilization
        needed = kvsize.weights_bytes(shape) * layers_share / tp + RUNTIME_BYTES + activations
        token = max(1, round(self.kv_token_bytes_per_gpu * layers_share))
        if usable < needed + token:
            raise DoesNotFit(
                f"the model needs {needed / 1e9:.1f} GB on each of {tp} {self.gpu.name} before any KV cache, "
                f"{(needed - usable) / 1e9:.1f} GB more than {memory_utilization:.0%} of its memory; "
                "use more GPUs or smaller steps"
            )
        return int((usable - needed) // token)

    def power_w(self, tensor: float, dram: float) -> float:
        """What one GPU draws at these activities: idle, then linear in its busy share. A guess, for display."""
        return self.gpu.power_w * (IDLE_POWER + (1 - IDLE_POWER) * min(1.0, max(tensor, dram)))


class _Work(NamedTuple):
    """The part of a step that only depends on its number of tokens. FLOPs of the whole engine, bytes per GPU."""

    linear_s: float
    kernels_s: float
    other_s: float
    """All-reduces and launches."""
    row_flops: float
    tile_flops: float
    dram_bytes: float

"""The parts of a step's time that do not depend on the step: FLOPs, bytes and rates of a model on its GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.core import kvsize
from controlplane.core.attention import STATE_FLOPS
from controlplane.core.gpus import ExpertCosts, Gpu, Stack
from controlplane.core.shapes import Attention, Mlp, Shape


class KvSegment(NamedTuple):
    """What one decode sequence costs in attention while its context is below `until` tokens: base + slope x context."""

    until: float
    base_bytes: float
    slope_bytes: float
    base_s: float
    slope_s: float
    base_flops: float
    slope_flops: float
    """FLOPs of the whole engine, the rest per GPU."""


class Experts(NamedTuple):
    """Layers with experts, all of one kind. FLOPs of one row in one expert of each layer; bytes of all experts."""

    flops: float
    bytes: float
    experts: int
    chosen: int
    missed_by_token: float
    """Chance that one token does not choose a given expert."""

    def touched(self, tokens: int) -> float:
        """Experts per layer that a step of `tokens` reads, if tokens chose evenly."""
        return self.experts * (1 - self.missed_by_token**tokens)


@dataclass(frozen=True, slots=True)
class Terms:
    """What `PhaseModel.step` would compute anew each time. FLOPs and bytes are whole-engine, `*_rate` are engine-wide and
    effective, except those marked per GPU."""

    dense_flops: float
    """Of one row in matrices that every token passes."""
    dense_bytes: float
    experts: tuple[Experts, ...]
    imbalance: float
    limited: Shape | None
    """The shape, where some layers see less than all tokens: prefill attention is then no constant times pairs."""
    pair_flops: float
    """Attention of one pair of tokens."""
    state_flops: float
    """Recurrences of one token."""
    head_flops: float
    head_bytes: float
    kv_segments: tuple[KvSegment, ...]
    elementwise_bytes: float
    """Per GPU and new token."""
    activation_bytes: float
    """Per GPU and new token, resident at once."""
    engine_peak: float
    """Nominal FLOP/s of all GPUs for the weights' type."""
    linear_rate: float
    bf16_rate: float
    attention_rate: float
    weight_rate: float
    elementwise_rate: float
    """Per GPU."""
    collective_s: float
    """All all-reduces of a step, without their messages."""
    collective_prefill_s: float
    message_s: float
    """Their messages, per new token."""
    long_message: float
    """Factor on message_s beyond LONG_MESSAGE_TOKENS."""
    launch_s: float
    sequence_s: float
    """For each decode sequence."""
    host_s: float
    host_prefill_s: float

    def prefill_attention_flops(self, tokens: int, past: int) -> float:
        """Without the recurrences of state layers."""
        if self.limited:
            return kvsize.attention_flops(self.limited, tokens, past) - self.state_flops * tokens
        return self.pair_flops * tokens * (past + tokens / 2)

    def segment(self, context: float) -> KvSegment:
        """The one in which a decode sequence of `context` tokens lies."""
        for segment in self.kv_segments:
            if context < segment.until:
                return segment
        return self.kv_segments[-1]


def terms(shape: Shape, gpu: Gpu, tensor_parallel: int, kv_dtype: str | None, stack: Stack, experts: ExpertCosts) -> Terms:
    """The constants of a model on `tensor_parallel` GPUs. Raises ConfigRefused for an unknown KV data type."""
    tp, eff = tensor_parallel, gpu.efficiency
    counts, stored = kvsize.parameters(shape), kvsize.linear_bytes(shape)
    head = shape.vocab * shape.hidden
    peak = gpu.fp8_flops if shape.compute_bits == 8 and gpu.fp8_flops else gpu.bf16_flops
    ring = 2 * (tp - 1) / tp
    reduces = 2 * shape.layers * stack.collective if tp > 1 else 0.0
    host = shape.layers * stack.host_s(shape.model_type, eff.architecture)
    width = _split_width(shape) / tp
    copies = sum(group.layers * group.chosen for group in shape.mlp) * experts.exchange_passes * shape.hidden
    return Terms(
        dense_flops=2 * (counts.linear - counts.expert_linear),
        dense_bytes=stored.always,
        experts=tuple(_experts(group) for group in shape.mlp if group.experts),
        imbalance=experts.imbalance,
        limited=shape if any(group.sees for group in shape.attention) else None,
        pair_flops=sum(_pair_flops(group) for group in shape.attention),
        state_flops=sum(STATE_FLOPS * group.layers * group.state_elements for group in shape.attention),
        head_flops=2 * head,
        head_bytes=head * 2,
        kv_segments=tuple(_segments(shape, gpu, tp, kv_dtype)),
        elementwise_bytes=2 * (8 * shape.hidden * shape.layers + width + copies),
        activation_bytes=2 * (4 * shape.hidden + width / shape.layers),
        engine_peak=tp * peak,
        linear_rate=tp * peak * eff.linear,
        bf16_rate=tp * gpu.bf16_flops * eff.linear,
        attention_rate=tp * gpu.bf16_flops * (eff.attention or eff.linear),
        weight_rate=tp * gpu.dram_bytes * eff.weights,
        elementwise_rate=gpu.dram_bytes * eff.elementwise,
        collective_s=reduces * (eff.collective_s + eff.collective_per_peer_s * (tp - 1)),
        collective_prefill_s=reduces * ring * eff.collective_prefill_s * stack.collective_prefill,
        message_s=reduces * ring * shape.hidden * 2 / (gpu.group_link_bytes(tp) * eff.link),
        long_message=stack.collective_long if tp > 2 else 1.0,
        sequence_s=stack.sequence_s + eff.sequence_s,
        launch_s=shape.layers * eff.layer_s
        + eff.step_s
        + sum(group.layers for group in shape.mlp if group.experts) * experts.layer_s,
        host_s=host,
        host_prefill_s=host * stack.host_prefill,
    )


def _experts(group: Mlp) -> Experts:
    return Experts(
        flops=2.0 * group.layers * group.expert,
        bytes=group.layers * group.expert * group.experts * group.expert_bytes,
        experts=group.experts,
        chosen=group.chosen,
        missed_by_token=1 - group.chosen / group.experts,
    )


def _split_width(shape: Shape) -> float:
    """Numbers per token, summed over layers, that heads and MLPs write: the part that tensor parallelism divides."""
    matrices = 3 if shape.gated_mlp else 2
    heads = sum(g.layers * (g.heads + 2 * g.kv_heads) * (g.key_dim + g.value_dim) for g in shape.attention)
    return heads + matrices * sum(group.layers * group.width for group in shape.mlp)


def _segments(shape: Shape, gpu: Gpu, tp: int, kv_dtype: str | None) -> Iterator[KvSegment]:
    """One for each stretch of contexts between two windows, the last without an end."""
    byte_s = 1 / (gpu.dram_bytes * gpu.efficiency.kv)
    flop_s = 1 / (tp * gpu.bf16_flops * gpu.efficiency.linear)
    until = 0.0
    while until < math.inf:
        start = until
        base, slope, until = kvsize.kv_read_line(shape, tp, kv_dtype, 1, start)
        seen = [group for group in shape.attention if not group.sees or start < group.sees]
        full = [group for group in shape.attention if group not in seen]
        flops = sum(_decode_flops(group) for group in seen)
        full_flops = sum(_decode_flops(group) * group.sees for group in full)
        yield KvSegment(
            until=until,
            base_bytes=base,
            slope_bytes=slope,
            base_s=max(base * byte_s, full_flops * flop_s),
            slope_s=max(slope * byte_s, flops * flop_s),
            base_flops=sum(_pair_flops(group) * group.sees for group in full),
            slope_flops=sum(_pair_flops(group) for group in seen),
        )


def _pair_flops(group: Attention) -> float:
    """Of one pair of tokens that sees another, in all layers of the group."""
    return 2.0 * group.layers * group.heads * (group.key_dim + group.value_dim) if group.kind != "state" else 0.0


def _decode_flops(group: Attention) -> float:
    """Of one token seen by a decode sequence. A latent is not unfolded then: every head multiplies the whole of it, as key
    and as value, so that its few bytes can cost more time in products than in reading."""
    return 4.0 * group.layers * group.heads * group.kv_elements if group.kind == "latent" else _pair_flops(group)

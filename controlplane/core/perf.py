"""How long one engine step takes, how busy it keeps the GPUs, and how much KV fits beside the weights. Pure.

One step runs any mix of prefill chunks and decode sequences. Formulas and their accuracy: the project's physics notes; a
dense model on a calibrated GPU is within a few percent, a mixture of experts up to a quarter too fast, other GPUs a guess
(`PhaseModel.basis`). Times in seconds, sizes in bytes, shares 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from controlplane.core import kvsize
from controlplane.core.gpus import Basis, Gpu
from controlplane.core.modelconfig import Shape

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
    """One step. tensor: tensor-pipe activity (FLOPs with rows rounded up to whole tiles ÷ peak at the phase's clock),
    averaged over the step; tensor_peak: the same inside the linear kernels only; dram: bytes moved ÷ peak bandwidth;
    mfu: useful FLOPs ÷ nominal peak. All per GPU, averages over the step unless said otherwise."""

    seconds: float
    tensor: float
    tensor_peak: float
    dram: float
    mfu: float


class DecodeLine(NamedTuple):
    """Steps of a fixed number of decode sequences, as a line in the sum of their contexts: a step costs `base_s +
    per_token_s * context_sum` seconds, exactly as `PhaseModel.step` says, while context_sum < `until_context` (infinite
    where the line never bends). `*_s` of tensor and DRAM are busy seconds: activity times seconds."""

    base_s: float
    per_token_s: float
    until_context: float
    tensor_s: float
    dram_base_s: float
    dram_per_token_s: float


Stack = Literal["current", "2023"]
CURRENT: Stack = "current"


@dataclass(frozen=True)
class PhaseModel:
    """A model on `tensor_parallel` GPUs of one kind. Raises DoesNotFit for an impossible tensor-parallel degree."""

    shape: Shape
    gpu: Gpu
    tensor_parallel: int
    kv_dtype: str | None = None
    stack: Stack = CURRENT
    _constants: _Constants = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tp = self.tensor_parallel
        if tp < 1 or self.shape.heads % tp:
            raise DoesNotFit(f"{self.shape.heads} attention heads cannot be split over {tp} GPUs")
        object.__setattr__(self, "_constants", _Constants.of(self))

    @property
    def basis(self) -> Basis:
        """Whether the efficiencies behind every figure were calibrated for this case or are a guess."""
        return "guess" if self.guesses else "calibrated"

    @property
    def guesses(self) -> tuple[str, ...]:
        """Why the figures are a guess, one sentence each; empty: calibrated."""
        reasons = []
        if self.gpu.basis == "guess":
            reasons.append(f"the efficiencies of {self.gpu.name} are borrowed from h100-sxm, not measured")
        if self.shape.experts:
            reasons.append("expert layers are computed without measurements of their imbalance and token exchange")
        return tuple(reasons)

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes of one token in the whole engine: what a transfer moves."""
        return kvsize.kv_bytes_of_shape(self.shape, self.kv_dtype)

    @property
    def kv_token_bytes_per_gpu(self) -> int:
        """KV bytes of one token on each GPU."""
        return kvsize.kv_bytes_per_token_per_gpu(self.shape, self.tensor_parallel, self.kv_dtype)

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: float) -> StepCost:
        """One step of `prefills`, each (new tokens, tokens before them), and `decodes` sequences whose contexts sum to
        `context` tokens. Counts must not be negative; an empty step costs its launch."""
        c, tp, eff = self._constants, self.tensor_parallel, self.gpu.efficiency
        new = decodes + sum(tokens for tokens, _ in prefills)
        prefilling = new > decodes
        weight_bytes = c.dense_bytes + c.expert_bytes * c.touched(new)
        row_flops = c.linear_flops * new
        linear_s = max(
            row_flops * (1 + eff.rows_half / new) / c.linear_rate if new else 0.0,
            weight_bytes / c.weight_rate,
        )
        head_s = max(c.head_bytes / c.weight_rate, c.head_flops * (decodes + len(prefills)) / c.bf16_rate)
        pairs = sum(tokens * (past + tokens / 2) for tokens, past in prefills)
        attention_flops = c.attention_flops * pairs
        attention_s = attention_flops / c.attention_rate
        kv_bytes = c.kv_token_bytes * context
        move_bytes = c.elementwise_bytes * new
        seconds = (
            linear_s
            + head_s
            + attention_s
            + kv_bytes / c.kv_rate
            + move_bytes / c.elementwise_rate
            + self._collectives(new, prefilling)
            + c.launch_s
            + eff.sequence_s * (decodes + len(prefills))
        )
        peak = c.linear_peak * (PREFILL_CLOCK if prefilling else DECODE_CLOCK)
        tile_flops = c.linear_flops * (-(-new // TILE_ROWS) * TILE_ROWS)
        dram_bytes = (weight_bytes + c.head_bytes) / tp + kv_bytes + move_bytes
        return StepCost(
            seconds=seconds,
            tensor=min(1.0, (tile_flops + attention_flops) / (peak * tp * seconds)),
            tensor_peak=min(1.0, (tile_flops + attention_flops) / (peak * tp * (linear_s + attention_s))),
            dram=min(1.0, dram_bytes / (self.gpu.dram_bytes * seconds)),
            mfu=(row_flops + attention_flops) / (c.linear_peak * tp * seconds),
        )

    def prefill(self, tokens: int, past: int = 0, batch: int = 1) -> StepCost:
        """One step that computes `tokens` new prompt tokens of each of `batch` sequences, after `past` cached ones."""
        return self.step([(tokens, past)] * batch, 0, 0)

    def decode(self, batch: int, context: float) -> StepCost:
        """One step that gives `batch` sequences a token each; their contexts are `context` tokens on average."""
        return self.step((), batch, batch * context)

    def decode_line(self, sequences: int, context_sum: float = 0.0) -> DecodeLine:
        """`step` of `sequences` decodes as a line in the sum of their contexts, around `context_sum`."""
        c = self._constants
        cost = self.step((), sequences, 0)
        return DecodeLine(
            base_s=cost.seconds,
            per_token_s=c.kv_token_bytes / c.kv_rate,
            until_context=math.inf,
            tensor_s=cost.tensor * cost.seconds,
            dram_base_s=cost.dram * cost.seconds,
            dram_per_token_s=c.kv_token_bytes / self.gpu.dram_bytes,
        )

    def _collectives(self, new: int, prefilling: bool) -> float:
        """The two all-reduces of every layer."""
        tp, eff = self.tensor_parallel, self.gpu.efficiency
        if tp == 1:
            return 0.0
        ring = 2 * (tp - 1) / tp
        message_s = ring * new * self.shape.hidden * 2 / (self.gpu.link_bytes * eff.link)
        extra_s = ring * eff.collective_prefill_s if prefilling else 0.0
        return 2 * self.shape.layers * (eff.collective_s + eff.collective_per_peer_s * (tp - 1) + message_s + extra_s)

    def kv_capacity_tokens(self, memory_utilization: float, batched_tokens: int) -> int:
        """Tokens of KV cache that fit beside the weights, what the runtime needs and the activations of a step of
        `batched_tokens`. Raises DoesNotFit, which says by how many GB."""
        shape, tp = self.shape, self.tensor_parallel
        activations = batched_tokens * self._constants.activation_bytes
        usable = self.gpu.memory_bytes * memory_utilization
        needed = kvsize.weights_bytes(shape) / tp + RUNTIME_BYTES + activations
        token = self.kv_token_bytes_per_gpu
        if usable < needed + token:
            raise DoesNotFit(
                f"the model needs {needed / 1e9:.1f} GB on each of {tp} {self.gpu.name} before any KV cache, "
                f"{(needed - usable) / 1e9:.1f} GB more than {memory_utilization:.0%} of its memory; use more GPUs"
            )
        return int((usable - needed) // token)

    def power_w(self, tensor: float, dram: float) -> float:
        """What one GPU draws at these activities: idle, then linear in its busy share. A guess, for display."""
        return self.gpu.power_w * (IDLE_POWER + (1 - IDLE_POWER) * min(1.0, max(tensor, dram)))


@dataclass(frozen=True, slots=True)
class _Constants:
    """What `step` would compute anew each time. FLOPs and bytes are whole-engine, `*_rate` are engine-wide and effective,
    except those marked per GPU."""

    linear_flops: float
    attention_flops: float
    head_flops: float
    dense_bytes: float
    expert_bytes: float
    experts: int
    missed_by_token: float
    """Chance that one token does not choose a given expert."""
    head_bytes: float
    kv_token_bytes: float
    """Per GPU."""
    elementwise_bytes: float
    """Per GPU and new token."""
    activation_bytes: float
    """Per GPU and new token, resident at once."""
    linear_peak: float
    """Nominal FLOP/s of one GPU for the weights' type."""
    linear_rate: float
    bf16_rate: float
    attention_rate: float
    weight_rate: float
    kv_rate: float
    """Per GPU."""
    elementwise_rate: float
    """Per GPU."""
    launch_s: float

    @classmethod
    def of(cls, model: PhaseModel) -> _Constants:
        shape, gpu, tp, eff = model.shape, model.gpu, model.tensor_parallel, model.gpu.efficiency
        counts = kvsize.parameters(shape)
        width = max(shape.intermediate, shape.experts_per_token * shape.expert_intermediate + shape.shared_intermediate)
        split = (2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 3 * width) / tp
        head = shape.vocab * shape.hidden
        peak = gpu.fp8_flops if shape.weight_bytes == 1 and gpu.fp8_flops else gpu.bf16_flops
        return cls(
            linear_flops=2 * counts.linear_active,
            attention_flops=4 * shape.heads * shape.head_dim * shape.layers,
            head_flops=2 * head,
            dense_bytes=(counts.linear - counts.expert_linear) * shape.weight_bytes,
            expert_bytes=counts.expert_linear * shape.weight_bytes,
            experts=shape.experts,
            missed_by_token=1 - shape.experts_per_token / shape.experts if shape.experts else 0.0,
            head_bytes=head * 2,
            kv_token_bytes=kvsize.kv_bytes_per_token_per_gpu(shape, tp, model.kv_dtype),
            elementwise_bytes=shape.layers * 2 * (8 * shape.hidden + split),
            activation_bytes=2 * (4 * shape.hidden + split),
            linear_peak=peak,
            linear_rate=tp * peak * eff.linear,
            bf16_rate=tp * gpu.bf16_flops * eff.linear,
            attention_rate=tp * gpu.bf16_flops * (eff.linear if eff.attention is None else eff.attention),
            weight_rate=tp * gpu.dram_bytes * eff.weights,
            kv_rate=gpu.dram_bytes * eff.kv,
            elementwise_rate=gpu.dram_bytes * eff.elementwise,
            launch_s=shape.layers * eff.layer_s + eff.step_s,
        )

    def touched(self, tokens: int) -> float:
        """Share of the experts that a step of `tokens` reads, if tokens chose evenly."""
        return 1 - self.missed_by_token**tokens if self.experts else 0.0

"""How many weights a model has, how many bytes they take and how many FLOPs a token costs. Pure.

Of a multimodal model the language model alone; layers for predicting several tokens at once (MTP) are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controlplane.core.attention import attention_flops
from controlplane.core.shapes import Mlp, Shape


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights. `linear`: all matrices besides embedding and head; `linear_active`: those that a token passes."""

    linear: int
    linear_active: int
    expert_linear: int
    """The part of `linear` that sits in experts of which a token passes only some."""
    embedding: int
    head: int
    """0 when tied to the embedding."""
    other: int
    """Norms, biases, convolutions."""
    other_active: int

    @property
    def total(self) -> int:
        return self.linear + self.embedding + self.head + self.other

    @property
    def active(self) -> int:
        """Parameters one token uses, embedding and head included, as models' publishers count."""
        return self.linear_active + self.embedding + self.head + self.other_active


class LinearBytes(NamedTuple):
    """Bytes of the matrices besides embedding and head: those that every token passes, and all experts."""

    always: float
    experts: float


def parameters(shape: Shape) -> Parameters:
    """Parameter counts, equal to those of the model that transformers builds from the config."""
    mixing = sum(group.layers * group.weights for group in shape.attention)
    always = sum(group.layers * (group.always + group.router) for group in shape.mlp)
    expert = sum(group.layers * group.expert * group.experts for group in shape.mlp)
    chosen = sum(group.layers * group.expert * group.chosen for group in shape.mlp)
    small = shape.extra_other + sum(group.layers * group.other for group in shape.attention)
    small += sum(group.layers * group.other for group in shape.mlp)
    linear = mixing + always + shape.extra_weights
    return Parameters(
        linear=linear + expert,
        linear_active=linear + chosen,
        expert_linear=expert,
        embedding=shape.embedding,
        head=0 if shape.tied_head else shape.vocab * shape.hidden,
        other=small + sum(_expert_other(group, group.experts) for group in shape.mlp),
        other_active=small + sum(_expert_other(group, group.chosen) for group in shape.mlp),
    )


def active_parameters(shape: Shape) -> int:
    """Parameters that one token uses: all of a dense model, of a mixture of experts the chosen experts only."""
    return parameters(shape).active


def linear_bytes(shape: Shape) -> LinearBytes:
    """What the matrices take in memory, as quantised as the checkpoint is. Routers stay in the activations' type."""
    plain = shape.activation_bytes
    mixing = sum(group.layers * group.weights * group.weight_bytes for group in shape.attention)
    always = sum(group.layers * (group.always * group.always_bytes + group.router * plain) for group in shape.mlp)
    experts = sum(group.layers * group.expert * group.experts * group.expert_bytes for group in shape.mlp)
    return LinearBytes(mixing + always + shape.extra_weights * plain, experts)


def weights_bytes(shape: Shape) -> int:
    """Bytes of all weights in the whole engine, before any copy that tensor parallelism makes."""
    counts, linear = parameters(shape), linear_bytes(shape)
    rest = counts.embedding + counts.head + counts.other
    return round(linear.always + linear.experts) + rest * shape.activation_bytes


def flops_per_token(shape: Shape, context: int = 0) -> float:
    """FLOPs of a forward pass for one token after `context` others: two per weight passed, output head included, and
    attention."""
    return 2.0 * (parameters(shape).linear_active + shape.vocab * shape.hidden) + attention_flops(shape, 1, context)


def _expert_other(group: Mlp, experts: int) -> int:
    return group.layers * group.expert_other * experts

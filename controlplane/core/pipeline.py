"""How long a step takes on an engine whose layers are divided into pipeline stages, and how much KV it has. Pure.

The performance model knows one stage; a pipeline follows from it, by stated assumptions that nobody has measured:

- Layers are divided evenly, the fullest stage has the rounded-up share. Weights and KV follow the layers.
- The sequences of a step are dealt to as many parts as there are stages (fewer if there are fewer sequences), and the parts
  pass the stages one behind the other. A sequence is in one part only, so that one alone gains nothing from more stages.
- A part's pass takes what the whole model takes for it on one stage's GPUs (the sum over stages), and for each boundary the
  time that its hidden states need on the link there.
- A step takes as long as the slowest pass, or as the slowest stage needs for all parts, whichever is longer. What a stage
  waits in that time is the pipeline's bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.perf import PhaseModel, StepCost

HIDDEN_BYTES = 2
"""Of one number of a hidden state on its way to the next stage."""


@dataclass(frozen=True)
class Pipeline:
    """`model` on the GPUs of one stage. `links`: bytes per second from each stage to the next."""

    model: PhaseModel
    links: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.stages > self.model.shape.layers:
            raise ValueError(f"{self.model.shape.layers} layers cannot be divided into {self.stages} pipeline stages")

    @property
    def stages(self) -> int:
        return len(self.links) + 1

    @property
    def fullest(self) -> float:
        """The largest share of the layers that one stage has."""
        layers = self.model.shape.layers
        return -(-layers // self.stages) / layers

    @property
    def kv_token_bytes_per_gpu(self) -> int:
        """KV bytes that the fullest stage reserves for one token on each GPU."""
        return max(1, round(self.model.kv_token_bytes_per_gpu * self.fullest))

    def kv_capacity_tokens(self, memory_utilization: float, batched_tokens: int) -> int:
        """See PhaseModel: the fullest stage decides."""
        return self.model.kv_capacity_tokens(memory_utilization, batched_tokens, self.fullest)

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: float) -> StepCost:
        """See PhaseModel.step. Activities are those of a GPU of any stage, averaged over the step with its waits."""
        if self.stages == 1:
            return self.model.step(prefills, decodes, context)
        parts = _parts(prefills, decodes, context, self.stages)
        costs = [self.model.step(*part) for part in parts]
        hop_s = sum(self.model.shape.hidden * HIDDEN_BYTES / link for link in self.links)
        passes = [
            cost.seconds + hop_s * (sum(tokens for tokens, _ in part[0]) + part[1])
            for part, cost in zip(parts, costs, strict=True)
        ]
        seconds = max(*passes, sum(cost.seconds for cost in costs) * self.fullest)

        def average(values: Sequence[float]) -> float:
            busy = sum(value * cost.seconds for value, cost in zip(values, costs, strict=True))
            return busy / self.stages / seconds

        return StepCost(
            seconds,
            average([cost.tensor for cost in costs]),
            max(cost.tensor_peak for cost in costs),
            average([cost.dram for cost in costs]),
            average([cost.mfu for cost in costs]),
        )


Part = tuple[Sequence[tuple[int, int]], int, float]
"""As PhaseModel.step takes them."""


def _parts(prefills: Sequence[tuple[int, int]], decodes: int, context: float, stages: int) -> list[Part]:
    count = max(1, min(stages, len(prefills) + decodes))
    parts: list[Part] = []
    for index in range(count):
        # Decodes are dealt from the other end, so that parts without a prompt get the odd ones.
        mine = decodes // count + (count - 1 - index < decodes % count)
        parts.append((prefills[index::count], mine, context * mine / decodes if decodes else 0.0))
    return parts

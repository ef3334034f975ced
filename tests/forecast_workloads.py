"""Workloads and layouts for the forecast's tests: seeded, no data files."""

from __future__ import annotations

import random

from controlplane.core.forecast import Arrival
from controlplane.core.modelconfig import read_shape
from controlplane.core.shapes import Shape
from controlplane.physics.catalog import read_config


def llama() -> Shape:
    return read_shape(read_config("llama-3.1-70b"))


def steady(rate: float, count: int, prompt: int = 4096, output: int = 300, seed: int = 1) -> list[Arrival]:
    """Poisson arrivals of equal requests."""
    dice, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        now += dice.expovariate(rate)
        arrivals.append(Arrival(now, prompt, output))
    return arrivals


def mixed(
    rate: float,
    count: int,
    prompt: int,
    output: int,
    seed: int = 1,
    burst: int = 1,
    families: int = 0,
    block_size: int = 16,
) -> list[Arrival]:
    """Log-normal lengths up to `prompt` and `output`, in bursts of `burst`. With `families`, prompts of a family start with
    the same blocks."""
    dice, now, arrivals = random.Random(seed), 0.0, []
    for number in range(count):
        if number % burst == 0:
            now += dice.expovariate(rate / burst)
        prompt_tokens = int(min(prompt, max(1.0, dice.lognormvariate(0, 1) * prompt / 5)))
        output_tokens = int(min(output, max(1.0, dice.lognormvariate(0, 1) * output / 4)))
        prefix: tuple[int, ...] = ()
        if families:
            family = dice.randrange(families)
            prompt_tokens += family * 37
            shared = prompt_tokens // block_size // dice.choice((1, 2))
            prefix = tuple(family * 100_000 + index for index in range(shared))
        arrivals.append(Arrival(now, prompt_tokens, output_tokens, prefix))
    return arrivals

"""Lengths of real requests, from a sample kept in this package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lengths:
    prompt_tokens: int
    answer_tokens: int


def load_lengths(max_prompt_tokens: int, max_answer_tokens: int) -> tuple[Lengths, ...]:
    """480 requests of the Azure 2023 conversation trace (CC-BY 4.0), cut to the two limits."""
    document = json.loads((Path(__file__).parent / "azure2023_conv_lengths.json").read_text())
    return tuple(
        Lengths(min(prompt, max_prompt_tokens), min(answer, max_answer_tokens)) for prompt, answer in document["requests"]
    )

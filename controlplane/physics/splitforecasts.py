"""Forecasts of several layouts of one model under one drawn traffic, by a process of its own.

`python -m controlplane.physics.splitforecasts` reads a Question as JSON on its standard input and writes a line of JSON per
layout as soon as it is known: [layout, answer], an answer being {"figures": …} as physics.forecastdoc has them, or
{"refused": "why"}. A web process asks it, so that a simulation never holds up its pages and sockets.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from controlplane.core.gpus import GPUS
from controlplane.core.layout import parse_layout
from controlplane.core.protocol import Slo
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.forecasting import forecast
from controlplane.physics.traffic import Drawn
from controlplane.physics.workload import Distribution

SEEDS = 3
"""Three draws give an interval; more would take longer than an operator waits."""
REQUESTS = 600
"""Of each draw, about: a quarter of a second of simulation for three of them."""
MOST_SECONDS = 20.0
NICENESS = 5


@dataclass(frozen=True)
class Question:
    """`layouts` as core.layout writes them. Tokens are means, `length_cv` the coefficient of variation of both lengths."""

    model: str
    config: Mapping[str, Any]
    layouts: tuple[str, ...]
    rate: float
    prompt_tokens: int
    output_tokens: int
    length_cv: float
    prefix_cached: int
    slo_ttft_ms: float
    slo_itl_ms: float
    max_num_seqs: int
    network_gbps: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    """US$ per GPU-hour by kind; one that is left out counts at its list price."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Question:
        values = json.loads(text)
        return cls(**{**values, "layouts": tuple(values["layouts"])})


def answers(question: Question) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each layout with its figures, or why there can be none."""
    for text in question.layouts:
        yield text, _answer(question, text)


def _answer(question: Question, text: str) -> dict[str, Any]:
    try:
        return {"figures": forecast(_request(question, text))["layouts"][0] | {"distribution": None}}
    except ValueError as error:  # every refusal of physics and core is one, and says what would do
        return {"refused": str(error)[:500]}


def _request(question: Question, text: str) -> ForecastRequest:
    seconds = max(20.0, REQUESTS / question.rate)
    distribution = Distribution(
        question.prompt_tokens, question.output_tokens, question.rate, seconds, length_cv=question.length_cv
    )
    return ForecastRequest(
        model=question.model,
        config=question.config,
        traffic=Drawn(distribution),
        slo=Slo(question.slo_ttft_ms, question.slo_itl_ms),
        layouts=(parse_layout(text, next(iter(GPUS)), GPUS),),
        seeds=SEEDS,
        network_gbps=question.network_gbps,
        prices=question.prices,
        prefix_cached=question.prefix_cached,
        max_num_seqs=question.max_num_seqs,
        most_seconds=MOST_SECONDS,
    )


def main() -> None:
    os.nice(NICENESS)
    for text, answer in answers(Question.from_json(sys.stdin.read())):
        sys.stdout.write(json.dumps([text, answer]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Measured phases that ship with Twinpool, as rows to fit on and to check against. Reads files; computes no model.

`phase_times.json`: Llama-3.1-70B in bf16 on vLLM, composed by AIConfigurator 0.12.0 from measured kernels.
`splitwise_measured_phases.csv`: Llama-2-70B and BLOOM-176B on vLLM of 2023, measured by Splitwise (Patel et al., ISCA 2024).
"""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.physics.catalog import DATA

Kind = Literal["prefill", "decode"]

_HARDWARE: Mapping[str, str] = {"a100-80gb": "a100-sxm", "h100-80gb": "h100-sxm"}
"""The file's third hardware, h100-80gb-pcap, is no measurement: its prompt times are those of h100-80gb times 1.3 exactly,
its token times the same."""
_MODELS: Mapping[str, str] = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}


@dataclass(frozen=True)
class Phase:
    """One prefill or decode step as measured. `model` names a config; `tokens` are those of each prompt, in decode of
    each context (half of the answer included)."""

    model: str
    gpu: str
    tensor_parallel: int
    kind: Kind
    tokens: float
    batch: int
    milliseconds: float
    answer: int = 0
    """Tokens that were asked for; 0 where the step does not belong to one answer."""


def phase_times() -> list[Phase]:
    """The 28 phases of today's vLLM."""
    rows = json.loads((DATA / "phase_times.json").read_text(encoding="utf-8"))["rows"]
    return [
        Phase(
            model="llama-3.1-70b",
            gpu=row["gpu"].replace("_", "-"),
            tensor_parallel=row["tp"],
            kind=row["phase"],
            tokens=row["tokens_in_context"],
            batch=row["batch"],
            milliseconds=row["milliseconds"],
        )
        for row in rows
    ]


def splitwise() -> list[Phase]:
    """Medians of equal runs of 2023's vLLM: a prefill for each prompt and batch, a decode for each answer length as well.

    `prompt_time` is the prefill of the whole batch, `token_time` one decode step of it, both in milliseconds (together they
    make `e2e_time`). Left out: the pcap rows, and Llama on two GPUs with batch 64, which did not fit: its prompt times
    would need 6 to 9 times the GPUs' peak. Answers ended early where `e2e_time` says so; contexts count what was generated.
    """
    runs = _runs()
    prefills: dict[tuple[str, str, int, int, int], list[dict[str, str]]] = defaultdict(list)
    phases = []
    for (model, gpu, tp, prompt, batch, answer), rows in runs.items():
        prefills[model, gpu, tp, prompt, batch].extend(rows)
        step_ms = _median(rows, "token_time")
        generated = 1 + (_median(rows, "e2e_time") - _median(rows, "prompt_time")) / step_ms
        context = prompt + min(answer, generated) / 2
        phases.append(Phase(model, gpu, tp, "decode", context, batch, step_ms, answer))
    for (model, gpu, tp, prompt, batch), rows in prefills.items():
        phases.append(Phase(model, gpu, tp, "prefill", prompt, batch, _median(rows, "prompt_time")))
    return phases


def _runs() -> Mapping[tuple[str, str, int, int, int, int], list[dict[str, str]]]:
    """Rows by model, GPU, tensor-parallel degree, prompt tokens, batch and asked answer tokens."""
    found: dict[tuple[str, str, int, int, int, int], list[dict[str, str]]] = defaultdict(list)
    with (DATA / "splitwise_measured_phases.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            model, tp, batch = _MODELS[row["model"]], int(row["tensor_parallel"]), int(row["batch_size"])
            overfull = model == "llama-2-70b" and tp == 2 and batch == 64
            if row["hardware"] in _HARDWARE and not overfull:
                shape = (model, _HARDWARE[row["hardware"]], tp, int(row["prompt_size"]), batch, int(row["token_size"]))
                found[shape].append(row)
    return found


def _median(rows: Iterable[Mapping[str, str]], column: str) -> float:
    return statistics.median(float(row[column]) for row in rows)

"""A question to the advisor as somebody at a page or a program asks it, and the process of its own that answers it.

`python -m controlplane.physics.advicequestion` reads a Question as JSON on its standard input and writes a line of JSON as
soon as there is one: ["closed", document] (the closed form, after a second, while it simulates), ["progress", {"what",
"share"}], and at last ["final", document], ["unsimulated", "why"] or ["refused", "why"], documents being those of
physics.advising with what physics.advicecharts draws.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from controlplane.core.advisor import Transport
from controlplane.core.forecast import TooLoose
from controlplane.core.protocol import Slo
from controlplane.physics.advicecharts import charts, kv_terms
from controlplane.physics.advising import SEEDS, AdviceRequest, advise_offline, document
from controlplane.physics.catalog import read_config
from controlplane.physics.traces import TraceRefused, trace_of

MAX_TRACE_CHARS = 1 << 20
"""Some 30,000 requests as Azure writes them, far more than a simulation takes."""
MAX_REASON = 500
NICENESS = 5
OWN_CONFIG = "own config.json"

Tell = Callable[[str, Any], None]


@dataclass(frozen=True)
class Question:
    """`model`: a name of catalog.config_names, if there is no `config`. `trace`: recorded requests as text, instead of the
    mean `input_tokens` and `output_tokens`. `prefix_hit`: 0..0.99; None: the trace's own, or 0. `seeds`: draws to simulate;
    0: the closed form only. `prices`: US$ per GPU-hour by kind. `rate`: requests/s that layouts are looked for."""

    gpus: int
    gpu: str
    network_gbps: float
    model: str = ""
    config: Mapping[str, Any] | None = None
    transport: Transport = "rdma"
    input_tokens: int | None = None
    output_tokens: int | None = None
    prefix_hit: float | None = None
    trace: str = ""
    prefill_gpu: str | None = None
    decode_gpu: str | None = None
    slo_ttft_ms: float = Slo.ttft_ms
    slo_itl_ms: float = Slo.itl_ms
    kv_dtype: str = "auto"
    seeds: int = SEEDS
    prices: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Question:
        return cls(**json.loads(text))

    @property
    def id(self) -> str:
        """The same for the same question, and to be guessed by nobody who does not know it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def asked(self) -> AdviceRequest:
        """Checked. Raises what AdviceRequest raises, TraceRefused and ConfigRefused; all are ValueErrors."""
        try:
            trace = trace_of(self.trace) if self.trace else None
        except TraceRefused as refused:
            raise TraceRefused(f"trace: {refused}") from None
        return AdviceRequest(
            model=OWN_CONFIG if self.config is not None else self.model,
            config=read_config(self.model) if self.config is None else self.config,
            gpus=self.gpus,
            gpu=self.gpu,
            network_gbps=self.network_gbps,
            transport=self.transport,
            input=self.input_tokens,
            output=self.output_tokens,
            prefix_hit=self.prefix_hit,
            trace=trace,
            prefill_gpu=self.prefill_gpu,
            decode_gpu=self.decode_gpu,
            slo=Slo(self.slo_ttft_ms, self.slo_itl_ms),
            kv_dtype=self.kv_dtype,
            seeds=self.seeds,
            prices=self.prices,
            rate=self.rate,
        )


def answer(question: Question, tell: Tell) -> None:
    """Tells the closed form's advice, then the simulation's, with its progress between, or why there is none."""

    def report(what: str, share: float | None) -> None:
        tell("progress", {"what": what, "share": share})

    try:
        asked = question.asked()
        closed = replace(asked, seeds=0)
        drawn = {"charts": charts(closed), "kv_terms": kv_terms(asked.offline.shape, asked.kv_dtype)}
        tell("closed" if asked.seeds else "final", document(advise_offline(closed), closed) | drawn)
        if asked.seeds:
            tell("final", document(advise_offline(asked, report), asked) | drawn)
    except TooLoose as loose:
        tell("unsimulated", f"This is the closed form: {loose}."[:MAX_REASON])
    except ValueError as refused:  # every refusal of physics and core is one, and says what would do
        tell("refused", str(refused)[:MAX_REASON])


def main() -> None:
    os.nice(NICENESS)

    def tell(kind: str, value: Any) -> None:
        sys.stdout.write(json.dumps([kind, value]) + "\n")
        sys.stdout.flush()

    answer(Question.from_json(sys.stdin.read()), tell)


if __name__ == "__main__":
    main()

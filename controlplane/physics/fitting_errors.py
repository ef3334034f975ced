"""How far the phase model is from measured phases, on rows it was fitted on and on rows it never saw. Pure figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.gpus import STACK_2023
from controlplane.physics import fitting
from controlplane.physics.fitting import Calibration, Predictor
from controlplane.physics.fitting_rows import Phase, phase_times, splitwise

TENSOR_PARALLEL = (2, 4, 8)
SHORT_ANSWER = 128
"""The length that every prompt and batch was measured with."""


@dataclass(frozen=True)
class ErrorRow:
    """|predicted / measured - 1| over some phases, as shares. p90: the smallest error that nine in ten do not exceed."""

    name: str
    fitted: bool
    """Whether the coefficients were fitted on these very phases."""
    phases: int
    median: float
    p90: float
    largest: float


@dataclass(frozen=True)
class Miss:
    """One phase that is far off; `error` is signed, above 0: predicted too slow."""

    phase: Phase
    error: float


def error_row(name: str, fitted: bool, errors: Iterable[float]) -> ErrorRow:
    """Raises ValueError for no errors at all."""
    found = sorted(abs(error) for error in errors)
    if not found:
        raise ValueError(f"no phases to judge: {name}")
    return ErrorRow(name, fitted, len(found), statistics.median(found), found[math.ceil(0.9 * len(found)) - 1], found[-1])


def current_errors() -> list[ErrorRow]:
    """The committed coefficients against today's stack, then what refits say about rows left out."""
    phases = phase_times()
    committed = Predictor(Calibration.committed())
    folds = {tp: _left_out(phases, tp) for tp in TENSOR_PARALLEL}
    hopper = Calibration.committed().efficiencies["hopper"]
    borrowed = Predictor(Calibration({"hopper": hopper, "ampere": hopper}))
    return [
        error_row("all of phase_times.json", True, _errors(committed, phases)),
        *(error_row(f"{kind} only", True, _errors(committed, _of(phases, kind=kind))) for kind in ("prefill", "decode")),
        *(error_row(f"H100 TP{tp}, fitted without TP{tp}", False, errors) for tp, errors in folds.items()),
        error_row("these three together", False, (error for errors in folds.values() for error in errors)),
        error_row(
            "the same without the weak prior",
            False,
            (error for tp in TENSOR_PARALLEL for error in _left_out(phases, tp, prior_weight=0.0)),
        ),
        error_row("A100 with H100's efficiencies: a guess", False, _errors(borrowed, _of(phases, gpu="a100-sxm"))),
    ]


def stack_errors() -> list[ErrorRow]:
    """The 2023 stack against Splitwise's measurements: Llama-2-70B fitted and by held-out degree, BLOOM-176B held out.

    Most decodes are the same step (512 tokens, batch 1) of answers that differ in length only, so they are also judged with
    one answer length each.
    """
    committed = Predictor(Calibration.committed(STACK_2023))
    llama, bloom = measured("llama-2-70b"), measured("bloom-176b")
    calibrating = [fitting.calibration_row(bloom, gpu) for gpu in ("a100-sxm", "h100-sxm")]
    unseen = [phase for phase in _of(bloom, kind="decode") if phase not in calibrating]
    folds = [(tp, kind) for kind in ("prefill", "decode") for tp in TENSOR_PARALLEL]
    left_out = {(tp, kind): _stack_left_out(llama, tp, kind) for tp, kind in folds}
    decodes = _of(llama, kind="decode")
    return [
        error_row("Llama-2-70B prefill", True, _errors(committed, _of(llama, kind="prefill"))),
        error_row("Llama-2-70B decode", True, _errors(committed, decodes)),
        error_row("the same, answers of 128 only", True, _errors(committed, _short(decodes))),
        *(
            error_row(f"Llama-2-70B {kind} at TP{tp}, fitted without TP{tp}", False, errors)
            for (tp, kind), errors in left_out.items()
        ),
        error_row("BLOOM-176B prefill", False, _errors(committed, _of(bloom, kind="prefill"))),
        error_row("BLOOM-176B decode, but the calibration rows", False, _errors(committed, unseen)),
        error_row("the same, answers of 128 only", False, _errors(committed, _short(unseen))),
    ]


def misses(stack: str, share: float) -> list[Miss]:
    """Phases of `stack` ("current" or "2023") that the committed coefficients miss by more than `share`, the worst first."""
    phases = phase_times() if stack == "current" else splitwise()
    predictor = Predictor(Calibration.committed() if stack == "current" else Calibration.committed(STACK_2023))
    found = [Miss(phase, predictor.ratio(phase) - 1) for phase in phases]
    return sorted((miss for miss in found if abs(miss.error) > share), key=lambda miss: -abs(miss.error))


def measured(model: str) -> list[Phase]:
    """Splitwise's phases of one model."""
    return [phase for phase in splitwise() if phase.model == model]


def _errors(predictor: Predictor, phases: Sequence[Phase]) -> list[float]:
    return [predictor.ratio(phase) - 1 for phase in phases]


def _short(phases: Sequence[Phase]) -> list[Phase]:
    return [phase for phase in phases if phase.answer == SHORT_ANSWER]


def _of(phases: Sequence[Phase], kind: str | None = None, gpu: str | None = None, tp: int | None = None) -> list[Phase]:
    return [
        phase
        for phase in phases
        if kind in (None, phase.kind) and gpu in (None, phase.gpu) and tp in (None, phase.tensor_parallel)
    ]


def _left_out(phases: Sequence[Phase], tp: int, prior_weight: float = fitting.PRIOR_WEIGHT) -> list[float]:
    """Errors of H100 rows of one TP degree by a fit that saw no row of that degree, of the A100 neither."""
    rest = [phase for phase in phases if phase.tensor_parallel != tp]
    values = fitting.fit_efficiencies(rest, prior_weight)
    return _errors(Predictor(fitting.with_efficiencies(values)), _of(phases, gpu="h100-sxm", tp=tp))


def _stack_left_out(phases: Sequence[Phase], tp: int, kind: str) -> list[float]:
    base = Calibration.committed()
    values = fitting.fit_stack([phase for phase in phases if phase.tensor_parallel != tp], base)
    return _errors(Predictor(fitting.with_stack(values, base)), _of(phases, kind=kind, tp=tp))

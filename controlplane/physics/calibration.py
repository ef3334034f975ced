"""Fits the performance model's constants to what an engine's own metrics say.

Each interval between two scrapes gives up to two measures, the model gives the same two for a mean step of it:

- itl: the mean time between tokens. A step of the mean number of sequences, plus what prefills in between add. A prompt
  meets `decoding` sequences on average (arrivals see time averages), so that the gaps of decoding x prefill steps of all
  `gaps` are longer.
- prefill: the mean time from a request's first step to its first token: its share of the interval's prefill steps.

The constants with which the model agrees best are found by least squares on log(model ÷ measured), with a loss that forgives
outliers (a shared machine stutters), drawn weakly towards the GPU table, so that what the load does not tell stays there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, least_squares

from controlplane.core.calibration import Calibration, Constants, Errors, Sample, base_gpu, calibrated
from controlplane.core.gpus import Gpu
from controlplane.core.modelconfig import Shape
from controlplane.core.perf import PhaseModel
from controlplane.physics.enginemetrics import EnginePage, Window, windows

Vector = npt.NDArray[np.float64]

NAMES = tuple(field.name for field in fields(Constants))
FIRST_SEQUENCE_S = 5e-5
"""Where the search for sequence_s starts; the GPU table has none."""
DRAW = 0.03
"""Pull towards the start, per factor of e: as much as an error of 3% in one window."""
TYPICAL_ERROR = 0.1
"""Misses beyond it count less than their square."""
WIDEST = 12.0
"""How far from the table the search goes, in factors of e."""
UNCERTAIN = math.log(1.5)
FEWEST_GAPS = 5
"""Fewer tokens in an interval say nothing of its mean time between them."""
LEAST_COMPUTED = 0.05
"""Share of prompt tokens computed here below which a first token is no prefill."""


class CannotCalibrate(ValueError):
    """The metrics do not hold enough to fit anything; the message names the remedy."""


def calibrate(stretches: Sequence[Sequence[EnginePage]], shape: Shape, gpu: str, tensor_parallel: int) -> Calibration:
    """The constants that explain the scrapes of one engine, in order of time; what happened between two stretches does not
    count. Raises CannotCalibrate or BadMetrics; DoesNotFit or UnknownGpu for an engine that cannot be."""
    found = [window for pages in stretches for window in windows(pages)]
    if not any(map(_tells_itl, found)) or not any(map(_tells_prefill, found)):
        raise CannotCalibrate(
            f"{sum(window.steps for window in found):.0f} steps between the pages: calibration needs prompts that "
            "are computed and answers of several tokens; scrape while the engine serves, for longer"
        )
    base = base_gpu(gpu)
    constants, uncertain = _fit(
        found, lambda constants: PhaseModel(shape, calibrated(base, constants), tensor_parallel), _start(base)
    )
    model = PhaseModel(shape, calibrated(base, constants), tensor_parallel)
    last = stretches[-1][-1]
    return Calibration(
        model=last.model,
        gpu=gpu,
        tensor_parallel=tensor_parallel,
        constants=constants,
        sample=_sample(found),
        errors=errors(model, found),
        uncertain=uncertain,
        request_s=_request_s(found, model),
        kv_tokens=last.kv_tokens,
        block_size=last.block_size,
    )


def _sample(found: Sequence[Window]) -> Sample:
    return Sample(
        windows=len(found),
        seconds=sum(window.seconds or 0.0 for window in found),
        steps=round(sum(window.steps for window in found)),
        prompt_tokens=round(sum(window.computed_tokens for window in found)),
        output_tokens=round(sum(window.gaps + window.first_tokens for window in found)),
    )


def errors(model: PhaseModel, found: Sequence[Window]) -> dict[str, Errors]:
    """|model ÷ measured - 1| of the measures of these windows, also of windows that were not fitted."""
    measures = {
        "itl": [abs(itl_s(model, each) / each.itl_s - 1) for each in found if _tells_itl(each)],
        "prefill": [
            abs(prefill_s(model, each) * each.finished / each.prefill_s - 1) for each in found if _tells_prefill(each)
        ],
    }
    return {
        name: Errors(median(values), sorted(values)[math.ceil(0.9 * len(values)) - 1], len(values))
        for name, values in measures.items()
        if values
    }


def itl_s(model: PhaseModel, window: Window) -> float:
    """The mean time between tokens that the model gives for a window."""
    alone = _step_s(model, (), window.sequences, _context_each(window))
    if not window.prefill_steps:
        return alone
    with_prefill = _step_s(model, _chunks(window), window.sequences, _context_each(window))
    return alone + (with_prefill - alone) * min(1.0, window.decoding * window.prefill_steps / window.gaps)


def prefill_s(model: PhaseModel, window: Window) -> float:
    """The mean time from the first step to the first token of the requests that ended in a window."""
    tokens = window.finished_prompt_tokens / window.finished * _computed(window)
    past = window.finished_prompt_tokens / window.finished - tokens
    together = window.first_tokens / window.prefill_steps if window.prefill_steps else 1.0
    if together <= 1:  # a prompt takes several steps
        piece = max(1, round(tokens * together))
        chunks = [(piece, round(past + piece * index)) for index in range(max(1, round(1 / max(together, 1e-3))))]
        return sum(_step_s(model, [chunk], window.decoding, _context_each(window)) for chunk in chunks)
    own = (max(1, round(tokens)), round(past))
    alone = _step_s(model, [own], window.decoding, _context_each(window))
    another = _step_s(model, [own, own], window.decoding, _context_each(window))
    return alone + (another - alone) * (together - 1)


def _tells_itl(window: Window) -> bool:
    return window.gaps >= FEWEST_GAPS and window.gaps_s > 0


def _tells_prefill(window: Window) -> bool:
    return bool(window.finished and window.prefill_s > 0 and _computed(window) > LEAST_COMPUTED)


def _chance(model: PhaseModel, window: Window) -> float:
    """How far, relatively, the mean time between tokens of a window goes up or down with whom its prefills met: a Poisson
    number of times `decoding` sequences, give or take."""
    if not window.prefill_steps:
        return 0.0
    alone = _step_s(model, (), window.sequences, _context_each(window))
    longer = _step_s(model, _chunks(window), window.sequences, _context_each(window)) - alone
    met = min(window.gaps, window.decoding * window.prefill_steps)
    return longer * math.sqrt(met * (1 + window.decoding)) / window.gaps / itl_s(model, window)


def _trust(window: Window) -> float:
    """In a window's mean prefill, 0..1. vLLM tells it when the answer ends: of long answers it is of another time. And where
    prompts share steps, or take several, the mean step is not the one that each was in."""
    late = window.decode_s / window.finished / window.seconds if window.seconds else 0.0
    together = window.first_tokens / window.prefill_steps if window.prefill_steps and window.first_tokens else 1.0
    return min(1.0, 1 / late if late else 1.0) * min(together, 1 / together) ** 2


def _computed(window: Window) -> float:
    """Share of prompt tokens that were computed here, of the prompts begun in this window or else of all it knows."""
    return window.computed_tokens / window.prompt_tokens if window.prompt_tokens else 1.0


def _context_each(window: Window) -> float:
    if window.context_each is not None:
        return window.context_each
    if not window.finished:
        return 0.0
    return (window.finished_prompt_tokens + window.finished_output_tokens / 2) / window.finished


def _chunks(window: Window) -> list[tuple[int, int]]:
    """What a prefill step of this window computed, on average: whole prompts, or a piece of one."""
    tokens, prompts = window.computed_tokens / window.prefill_steps, window.first_tokens / window.prefill_steps
    count = max(1, round(prompts))
    return [(max(1, round(tokens / count)), 0)] * count


def _step_s(model: PhaseModel, chunks: Sequence[tuple[int, int]], sequences: float, context_each: float) -> float:
    """A step with a mean number of decode sequences: the line between the two whole numbers around it."""
    below = math.floor(sequences)
    low = model.step(chunks, below, below * context_each).seconds if below or chunks else 0.0
    if below == sequences:
        return low
    high = model.step(chunks, below + 1, (below + 1) * context_each).seconds
    return low + (high - low) * (sequences - below)


def _start(base: Gpu) -> Constants:
    table = base.efficiency
    return Constants(table.linear, table.attention or table.linear, table.kv, table.step_s, FIRST_SEQUENCE_S)


def _fit(
    found: Sequence[Window], model_of: Callable[[Constants], PhaseModel], start: Constants
) -> tuple[Constants, tuple[str, ...]]:
    """The constants, and the names of those that the windows leave open. Twice: how far chance moves a measure is known only
    once there is a model."""
    first = np.log([getattr(start, name) for name in NAMES])
    best = _nearest(first, first, model_of, _measures(found, None))
    measures = _measures(found, model_of(_constants(best.x)))
    best = _nearest(best.x, first, model_of, measures)
    noise = float(np.median(np.abs(best.fun[: len(measures)]))) * 1.5 + 1e-3
    told = best.jac[: len(measures)]  # without the pull
    spread = np.diag(np.linalg.inv(told.T @ told / noise**2 + 1e-6 * np.eye(len(NAMES))))
    return _constants(best.x), tuple(name for name, each in zip(NAMES, spread, strict=True) if each > UNCERTAIN**2)


class _Measure(NamedTuple):
    predict: Callable[[PhaseModel, Window], float]
    window: Window
    measured_s: float
    weight: float


def _measures(found: Sequence[Window], model: PhaseModel | None) -> list[_Measure]:
    """All that the windows tell, with what `model` says of its weight."""
    measures = []
    for window in found:
        if _tells_itl(window):
            weight = 1 / math.hypot(1, _chance(model, window) / TYPICAL_ERROR) if model else 1.0
            measures.append(_Measure(itl_s, window, window.itl_s, weight))
        if _tells_prefill(window):
            measures.append(_Measure(prefill_s, window, window.prefill_s / window.finished, _trust(window)))
    return measures


def _nearest(
    begin: Vector, first: Vector, model_of: Callable[[Constants], PhaseModel], measures: Sequence[_Measure]
) -> OptimizeResult:
    """Least squares over the logarithms of the constants, from `begin` on, drawn to `first`."""

    def residuals(logs: Vector) -> Vector:
        model = model_of(_constants(logs))
        misses = (each.weight * math.log(each.predict(model, each.window) / each.measured_s) for each in measures)
        return np.fromiter(chain(misses, DRAW * (logs - first)), float)

    bounds = first - WIDEST, first + WIDEST
    return least_squares(residuals, begin, loss="soft_l1", f_scale=TYPICAL_ERROR, bounds=bounds)


def _constants(logs: Vector) -> Constants:
    return Constants(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))


def _request_s(found: Sequence[Window], model: PhaseModel) -> float:
    """What first tokens took beyond queue and prefill, less the wait for the step that runs at arrival: half of a step, as
    often as one runs. Medians over windows; 0 where the pages do not tell the time."""
    rests = []
    for window in found:
        if window.seconds and window.first_tokens and window.finished:
            rest = (window.ttft_s / window.first_tokens) - (window.queue_s + window.prefill_s) / window.finished
            step_s = itl_s(model, window) if window.gaps else 0.0
            rests.append(rest - min(1.0, window.steps * step_s / window.seconds) * step_s / 2)
    return max(0.0, median(rests)) if rests else 0.0

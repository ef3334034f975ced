"""The forecast that command, API and pages share: a checked request goes in, a document comes out.

All layouts meet the same requests (the same draw per seed), so that what differs between them is theirs. In mode `compare`
every mode gets the same number of GPUs; its split is searched by simulation. Which one wins is told with its criterion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from controlplane.core.forecast import Forecast, Outcome
from controlplane.core.layout import Layout
from controlplane.physics import forecastdoc
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.candidates import Candidate, candidates
from controlplane.physics.runs import Run, Runs, runs_of, summed
from controlplane.physics.splits import NEAR, Score, mean_score

Report = Callable[[str, float | None], None]
"""Told what is being done and the share (0..1) of it that is through, None while nobody knows. Whatever it raises ends the
forecast."""

GROWTH = 0.02
"""Seconds by which TTFT grows per second of traffic, from which on a layout counts as overloaded."""
CRITERION = f"most requests within the SLO per US$; nearer than {100 * NEAR:g} %, the lower {{of}} against its limit"


@dataclass(frozen=True)
class _Result:
    """All seeds of one layout."""

    candidate: Candidate
    runs: tuple[Run, ...]
    forecast: Forecast

    @property
    def score(self) -> Score:
        return mean_score([run.score for run in self.runs])

    @property
    def document(self) -> dict[str, Any]:
        return {
            "layout": self.candidate.layout.text,
            "mode": self.candidate.layout.mode,
            **forecastdoc.figures(self.forecast),
            "notes": [*self.candidate.notes, *_notes(self)],
            "search": dict(self.candidate.search) or None,
            "distribution": forecastdoc.distributions([run.outcome for run in self.runs]),
        }


def forecast(asked: ForecastRequest, report: Report | None = None) -> dict[str, Any]:
    """The document of a forecast (keys: forecastdoc.py and docs/forecast.md): the winner's figures, and all layouts'.

    Raises ForecastRefused, DoesNotFit and their like with the remedy.
    """
    told = report or (lambda what, share: None)
    runs = runs_of(asked)

    def probe(layout: Layout) -> Score:
        told(f"searching the split: {layout.text}", None)
        return runs.probe(layout)

    found = candidates(asked, probe)
    results = _results(asked, runs, found.chosen, told)
    best = _best(results)
    return {
        "model": asked.model,
        "layout": best.candidate.layout.text,
        "mode": best.candidate.layout.mode,
        **forecastdoc.figures(best.forecast),
        "winner": _winner(asked, best, results),
        "layouts": [result.document for result in results],
        "missing": dict(found.missing),
        "inputs": _inputs(asked, results),
    }


def _results(asked: ForecastRequest, runs: Runs, chosen: Sequence[Candidate], told: Report) -> list[_Result]:
    results, done = [], 0
    for candidate in chosen:
        made = []
        for seed in range(1, asked.runs + 1):

            def progress(share: float, candidate: Candidate = candidate, done: int = done) -> None:
                told(f"simulating {candidate.layout.text}", (done + share) / (len(chosen) * asked.runs))

            made.append(runs.run(candidate.layout, seed, progress))
            done += 1
        told_of = replace(candidate, notes=(*candidate.notes, *_calibrated(asked, candidate.layout)))
        results.append(_Result(told_of, tuple(made), summed(asked, made)))
    return results


def _calibrated(asked: ForecastRequest, layout: Layout) -> list[str]:
    """What must be known of the calibrations that the layout's pools use."""
    used = {(pool.gpu, pool.tensor_parallel) for pool in layout.pools if pool.gpu in asked.calibrations}
    return list(dict.fromkeys(note for kind, degree in sorted(used) for note in asked.calibrations[kind].notes(degree)))


def _best(results: Sequence[_Result]) -> _Result:
    best = results[0]
    for result in results[1:]:
        if result.score.beats(best.score):
            best = result
    return best


def _winner(asked: ForecastRequest, best: _Result, results: Sequence[_Result]) -> dict[str, Any] | None:
    """Who won by which criterion, and what it is to each of the others. None with one layout."""
    if len(results) == 1:
        return None
    of = "mean" if asked.saturate == "steady" else "p99"
    return {
        "layout": best.candidate.layout.text,
        "mode": best.candidate.layout.mode,
        "criterion": CRITERION.format(of=of),
        "strain_of": of,
        "strain": _strain(best.score),
        "others": [_compared(best, result) | {"strain_of": of} for result in results if result is not best],
    }


def _compared(best: _Result, other: _Result) -> dict[str, Any]:
    value = other.score.value
    return {
        "layout": other.candidate.layout.text,
        "mode": other.candidate.layout.mode,
        "ratio": forecastdoc.rounded(best.score.value / value) if value else None,
        "tie": best.score.ties(other.score),
        "strain": _strain(other.score),
        "seeds_won": sum(one.score.beats(another.score) for one, another in zip(best.runs, other.runs, strict=True)),
        "seeds": len(best.runs),
    }


def _strain(of: Score) -> float | None:
    """p99 over its limit, for JSON."""
    return forecastdoc.rounded(of.strain) if math.isfinite(of.strain) else None


def _notes(result: _Result) -> list[str]:
    notes, total = list(dict.fromkeys(note for run in result.runs for note in run.notes)), result.forecast
    growth = max(_growth(run.outcome) for run in result.runs) if total.requests_per_second.value else 0.0
    if growth > GROWTH:
        notes.append(
            f"overloaded: waits grow by {60 * growth:.1f} s for every minute of traffic, so latencies say how long it lasted"
        )
    if total.refused:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in total.refused.items())
        notes.append(f"{sum(total.refused.values()):,} of {total.arrived:,} requests are refused ({reasons})")
    return notes


def _growth(outcome: Outcome) -> float:
    """Seconds by which the median TTFT of the last fifth of requests exceeds the first fifth's, per second between them."""
    served = sorted(outcome.served)
    fifth = len(served) // 5
    if fifth < 10:
        return 0.0
    grown = median(one.ttft_s for one in served[-fifth:]) - median(one.ttft_s for one in served[:fifth])
    return grown / (0.8 * max(1.0, outcome.span_s - grown))


def _inputs(asked: ForecastRequest, results: Sequence[_Result]) -> dict[str, Any]:
    """What the forecast was made from."""
    settings = asked.settings
    kinds = sorted({pool.gpu for result in results for pool in result.candidate.layout.pools})
    return {
        "traffic": asked.traffic.document(),
        "slo": {"ttft_ms": asked.slo.ttft_ms, "itl_ms": asked.slo.itl_ms},
        "seeds": asked.seeds,
        "simulations_per_layout": asked.runs,
        "saturate": asked.saturate,
        "prefix_cached_tokens": asked.prefix_cached,
        "weights": asked.weights,
        "kv_dtype": asked.kv_dtype,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_tokens": settings.block_size,
        "memory_utilization": settings.memory_utilization,
        "gpus": {kind: _kind(asked, kind) for kind in kinds},
    }


def _kind(asked: ForecastRequest, kind: str) -> Mapping[str, Any]:
    gpu = asked.gpu(kind)
    return {
        "price_per_hour": asked.price(kind),
        "price_basis": "given" if kind in asked.prices else "guess",
        "network_gbps": asked.network_gbps or gpu.network_gbps,
        "network_basis": "given" if asked.network_gbps else "guess",
        "efficiency_basis": gpu.basis,
    }

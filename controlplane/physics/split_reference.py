"""The comparison of modes beside AIConfigurator's on seven scenarios, as figures. Reads the reference; writes nothing.

`split_search.json` holds the best layouts that AIConfigurator 0.12.0 found. They are checked twice: at its own layouts and
batches, which judges step times and conventions, and by a search of our own on its grid, which judges the whole decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.core import comparison
from controlplane.core.comparison import CONVENTIONS, Aggregated, Conventions, Lengths, Stage
from controlplane.core.gpus import Gpu, gpu
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.core.shapes import Shape
from controlplane.core.splitsearch import REFERENCE_GRID, Limits, SearchResult, search
from controlplane.physics.catalog import DATA, read_config
from controlplane.physics.fitting_errors import ErrorRow, error_row

CLEAR = 0.15
"""A ratio further from 1 than this must name the right winner."""

_FP8: Mapping[str, Any] = {
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
}
"""As NVIDIA's checkpoint says it (hf_quant_config.json): FP8 layers and KV cache, the output head as it was."""
_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "meta-llama/Meta-Llama-3.1-70B": ("llama-3.1-70b", {}),
    "meta-llama/Meta-Llama-3.1-8B": ("llama-3.1-8b", {}),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("llama-3.1-70b", _FP8),
}


@dataclass(frozen=True)
class Scenario:
    """A question, and the reference's best layouts (`agg`, `disagg`: its rows as they are, times in ms)."""

    name: str
    title: str
    shape: Shape
    gpu: Gpu
    gpus: int
    lengths: Lengths
    limits: Limits
    conventions: Conventions
    agg: Mapping[str, Any]
    disagg: Mapping[str, Any]

    @property
    def ratio(self) -> float:
        """The reference's tokens/s per GPU of the split / of one pool."""
        return float(self.disagg["tokens/s/gpu"] / self.agg["tokens/s/gpu"])

    @property
    def prefill_share(self) -> float:
        return float(self.disagg["(p)workers"] * self.disagg["(p)tp"] / self.disagg["num_total_gpus"])

    def model(self, tensor_parallel: int) -> PhaseModel:
        return PhaseModel(self.shape, self.gpu, tensor_parallel)


@dataclass(frozen=True)
class Listed:
    """What the model gives at the reference's own layouts and batches, rates per engine; tokens/s per GPU."""

    aggregated: Aggregated
    prefill: Stage
    decode: Stage
    aggregated_tokens: float
    split_tokens: float
    prefill_bound: bool

    @property
    def ratio(self) -> float:
        return self.split_tokens / self.aggregated_tokens


def scenarios() -> list[Scenario]:
    """The reference's seven."""
    rows = json.loads((DATA / "split_search.json").read_text(encoding="utf-8"))["scenarios"]
    return [_scenario(row) for row in rows]


def _scenario(row: Mapping[str, Any]) -> Scenario:
    args = row["args"]
    name, quantised = _MODELS[args["model_path"]]
    kind = args["system"].replace("_", "-")
    tokens = f"{args['isl']:,} / {args['osl']}"
    return Scenario(
        name=row["id"],
        title=f"{name}{' FP8' if quantised else ''}, {args['total_gpus']} {kind}, {args['backend']}, {tokens}",
        shape=read_shape({**read_config(name), **quantised}),
        gpu=gpu(kind),
        gpus=args["total_gpus"],
        lengths=Lengths(args["isl"], args["osl"]),
        limits=Limits(args["ttft"] / 1000, args["tpot"] / 1000),
        conventions=CONVENTIONS[args["backend"]],
        agg=row["agg"],
        disagg=row["disagg"],
    )


def at_listed(scenario: Scenario, conventions: Conventions | None = None) -> Listed:
    """The model at the reference's layouts. The chunk of mixed steps is not recorded: as in a search, the one of the most
    tokens/s that keeps the limits, or of the most tokens/s if none does."""
    conventions = conventions or scenario.conventions
    agg, disagg, lengths = scenario.agg, scenario.disagg, scenario.lengths
    whole = _best_chunk(scenario, conventions)
    first = comparison.prefill(scenario.model(disagg["(p)tp"]), lengths, disagg["(p)bs"], conventions)
    second = comparison.decode(scenario.model(disagg["(d)tp"]), lengths, disagg["(d)bs"], conventions)
    prefill_rate = first.requests_per_second * disagg["(p)workers"]
    decode_rate = second.requests_per_second * disagg["(d)workers"]
    return Listed(
        aggregated=whole,
        prefill=first,
        decode=second,
        aggregated_tokens=whole.requests_per_second * (lengths.output - 1) / agg["num_total_gpus"],
        split_tokens=min(prefill_rate, decode_rate) * lengths.output / disagg["num_total_gpus"],
        prefill_bound=prefill_rate < decode_rate,
    )


def _best_chunk(scenario: Scenario, conventions: Conventions) -> Aggregated:
    batch, lengths, limits = scenario.agg["bs"], scenario.lengths, scenario.limits
    model = scenario.model(scenario.agg["tp"])
    tried = [
        comparison.aggregated(model, lengths, batch, chunk, conventions)
        for chunk in comparison.chunks(lengths)
        if chunk < max(2, batch) * lengths.prompt
    ]
    keeping = [each for each in tried if each.ttft_s <= limits.ttft_s and each.tpot_s <= limits.tpot_s]
    return max(keeping or tried, key=lambda each: each.requests_per_second)


def searched(scenario: Scenario) -> SearchResult:
    """Our own search, on the reference's grid."""
    return search(
        scenario.shape,
        scenario.gpus,
        scenario.lengths,
        scenario.limits,
        scenario.gpu,
        conventions=scenario.conventions,
        grid=REFERENCE_GRID,
    )


@dataclass(frozen=True)
class Compared:
    """One scenario, judged both ways."""

    scenario: Scenario
    listed: Listed
    bare: Listed
    """At the reference's layouts without the correction factors of two pools."""
    found: SearchResult

    @property
    def listed_error(self) -> float:
        return self.listed.ratio / self.scenario.ratio - 1

    @property
    def search_error(self) -> float:
        """Infinite where a mode was not found at all."""
        return self.found.ratio / self.scenario.ratio - 1 if self.found.ratio else float("inf")

    @property
    def share_error(self) -> float:
        found = self.found.prefill_share
        return found - self.scenario.prefill_share if found is not None else float("inf")

    @property
    def right_when_listed(self) -> bool:
        return (self.listed.ratio > 1) == (self.scenario.ratio > 1)

    @property
    def right_when_searched(self) -> bool:
        return (self.found.winner == "disaggregated") == (self.scenario.ratio > 1)

    @property
    def clear(self) -> bool:
        return abs(self.scenario.ratio - 1) > CLEAR


def compared() -> list[Compared]:
    """All scenarios, judged."""
    return [_compared(scenario) for scenario in scenarios()]


def _compared(scenario: Scenario) -> Compared:
    bare = replace(scenario.conventions, prefill_latency=1.0, decode_latency=1.0, prefill_rate=1.0, decode_rate=1.0)
    return Compared(scenario, at_listed(scenario), at_listed(scenario, bare), searched(scenario))


def figures(rows: Sequence[Compared]) -> dict[str, Any]:
    """What the comparison is held to, as plain numbers; errors are shares."""
    listed = error_row("ratio at the reference's layouts", False, (row.listed_error for row in rows))
    own = error_row("ratio by our own search", False, (row.search_error for row in rows))
    return {
        "scenarios": len(rows),
        "listed_wrong_clear_winners": [row.scenario.name for row in rows if row.clear and not row.right_when_listed],
        "listed_wrong_winners": [row.scenario.name for row in rows if not row.right_when_listed],
        "listed_ratio_error": _numbers(listed),
        "search_wrong_clear_winners": [row.scenario.name for row in rows if row.clear and not row.right_when_searched],
        "search_wrong_winners": [row.scenario.name for row in rows if not row.right_when_searched],
        "search_ratio_error": _numbers(own),
        "prefill_share_error_max": max(abs(row.share_error) for row in rows),
        "listed_errors": {row.name: _numbers(row) for row in listed_errors(rows)},
    }


def listed_errors(rows: Iterable[Compared]) -> list[ErrorRow]:
    """Errors of times and rates at the reference's layouts."""
    pairs: dict[str, list[float]] = {}
    for row in rows:
        agg, disagg, listed = row.scenario.agg, row.scenario.disagg, row.listed
        for name, ours, theirs in (
            ("one pool: TTFT", listed.aggregated.ttft_s * 1000, agg["ttft"]),
            ("one pool: TPOT", listed.aggregated.tpot_s * 1000, agg["tpot"]),
            ("one pool: tokens/s per GPU", listed.aggregated_tokens, agg["tokens/s/gpu"]),
            ("two pools: TTFT", listed.prefill.seconds * 1000, disagg["ttft"]),
            ("two pools: TPOT", listed.decode.seconds * 1000, disagg["tpot"]),
            ("two pools: tokens/s per GPU", listed.split_tokens, disagg["tokens/s/gpu"]),
        ):
            pairs.setdefault(name, []).append(ours / theirs - 1)
    return [error_row(name, False, errors) for name, errors in pairs.items()]


def _numbers(row: ErrorRow) -> dict[str, float]:
    return {"median": row.median, "p90": row.p90, "max": row.largest}

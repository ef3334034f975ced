"""Which layouts a forecast compares: those that were named, or for each mode the best that the GPUs allow.

The split of two pools is searched by simulation (splits.py). A tensor-parallel degree that nobody gave is the one of the
best steady-state plan (core/splitsearch.py); where no plan keeps the targets, the smallest that the model fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.comparison import Lengths
from controlplane.core.forecast import ForecastRefused
from controlplane.core.layout import Layout, monolithic
from controlplane.core.perf import DoesNotFit, PhaseModel
from controlplane.core.protocol import Mode, Role
from controlplane.core.splitsearch import Limits, NoLayout, SearchResult, search
from controlplane.physics.asked import ForecastRequest
from controlplane.physics.splits import Score, all_splits, balanced, climb, decode_side, prefill_side

Probe = Callable[[Layout], Score]
"""Simulates a layout, shortly."""

DEGREES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Candidate:
    """A layout to simulate. `search`: how its split was found, for people and JSON; empty if it was named."""

    layout: Layout
    search: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidates:
    chosen: tuple[Candidate, ...]
    missing: Mapping[str, str]
    """Mode → why no layout of it can be built."""


def candidates(asked: ForecastRequest, probe: Probe) -> Candidates:
    """All layouts to compare. Raises ForecastRefused or DoesNotFit if there is none."""
    if asked.layouts:
        for layout in asked.layouts:
            for pool in layout.pools:
                model_on(asked, pool.gpu, pool.tensor_parallel)
        return Candidates(tuple(Candidate(layout) for layout in asked.layouts), {})
    return _Chooser(asked, probe).all()


def model_on(asked: ForecastRequest, kind: str, degree: int) -> PhaseModel:
    """The model on engines of `degree` GPUs. Raises DoesNotFit if it cannot run there, by how many GB."""
    model = PhaseModel(asked.shape, asked.gpu(kind), degree, asked.kv_dtype)
    settings = asked.settings
    model.kv_capacity_tokens(settings.memory_utilization, settings.max_num_batched_tokens)
    return model


class _Chooser:
    def __init__(self, asked: ForecastRequest, probe: Probe) -> None:
        self.asked, self.probe, self.hardware = asked, probe, asked.hardware
        self.missing: dict[str, str] = {}
        self._plans: dict[tuple[str, str], SearchResult | None] = {}

    def all(self) -> Candidates:
        found: list[Candidate] = []
        wanted: tuple[Mode, ...] = (
            ("monolithic", "disaggregated", "conditional") if self.asked.mode == "compare" else (self.asked.mode,)
        )
        for mode in wanted:
            for prefill, decode in self._kinds(mode):
                try:
                    found.append(self._whole(prefill) if mode == "monolithic" else self._split(mode, prefill, decode))
                except (DoesNotFit, ForecastRefused) as refused:
                    if len(wanted) == 1 or (mode == "monolithic" and self.hardware.degree("mixed")):
                        raise
                    self.missing[mode] = str(refused)
        if not found:
            raise ForecastRefused("; ".join(dict.fromkeys(self.missing.values())))
        return Candidates(tuple(found), self.missing)

    def _kinds(self, mode: Mode) -> list[tuple[str, str]]:
        """Kinds of prefill and decode engines to try. Where the pools' kinds differ, each kind alone is compared too."""
        prefill, decode = self.hardware.kinds
        if prefill == decode:
            return [(prefill, decode)]
        alone = [(prefill, prefill), (decode, decode)]
        if mode == "monolithic":
            return alone
        return (
            [*alone, (prefill, decode)] if self.asked.mode == "compare" and mode == "disaggregated" else [(prefill, decode)]
        )

    def _whole(self, kind: str) -> Candidate:
        degree = self.hardware.degree("mixed") or self._planned("mixed", kind, kind)
        model_on(self.asked, kind, degree)
        layout = monolithic(self.hardware.gpus // degree, degree, kind)
        return Candidate(layout, notes=self._idle(layout))

    def _split(self, mode: Mode, prefill_kind: str, decode_kind: str) -> Candidate:
        first = self.hardware.degree("prefill") or self._planned("prefill", prefill_kind, decode_kind)
        second = self.hardware.degree("decode") or self._planned("decode", prefill_kind, decode_kind)
        asked, traffic, settings = self.asked, self.asked.traffic, self.asked.settings
        new_tokens = traffic.prompt_tokens - asked.prefix_cached
        prefill = prefill_side(model_on(asked, prefill_kind, first), new_tokens, settings.max_num_batched_tokens)
        decode = decode_side(model_on(asked, decode_kind, second), traffic.prompt_tokens, traffic.output_tokens, settings)
        layouts = all_splits(self.hardware.gpus, prefill, decode, mode)
        if not layouts:
            raise ForecastRefused(
                f"a prefill engine of {first} and a decode engine of {second} GPUs need {first + second} GPUs, "
                f"there are {self.hardware.gpus}"
            )
        tried: dict[str, Score] = {}

        def scored(index: int) -> Score:
            layout = layouts[index]
            tried[layout.text] = self.probe(layout)
            return tried[layout.text]

        start = balanced(layouts, prefill, decode)
        layout = layouts[climb(len(layouts), start, scored)]
        search = {"splits": len(layouts), "simulated": len(tried), "start": layouts[start].text, "tried": sorted(tried)}
        return Candidate(layout, search, self._idle(layout))

    def _idle(self, layout: Layout) -> tuple[str, ...]:
        idle = self.hardware.gpus - layout.gpus
        return (f"{idle} of {self.hardware.gpus} GPUs stay idle: engines of this size do not fill them",) if idle else ()

    def _planned(self, role: Role, prefill_kind: str, decode_kind: str) -> int:
        """The degree of the best steady-state plan, or the smallest that fits."""
        plan = self._plan(prefill_kind, decode_kind)
        found = () if plan is None else plan.aggregated if role == "mixed" else plan.disaggregated
        if found:
            return next(pool.tensor_parallel for pool in found[0].layout.pools if pool.role == role)
        return self._smallest(decode_kind if role == "decode" else prefill_kind)

    def _plan(self, prefill_kind: str, decode_kind: str) -> SearchResult | None:
        key = prefill_kind, decode_kind
        if key not in self._plans:
            self._plans[key] = self._searched(*key)
        return self._plans[key]

    def _searched(self, prefill_kind: str, decode_kind: str) -> SearchResult | None:
        asked, traffic = self.asked, self.asked.traffic
        if traffic.output_tokens < 2:
            return None
        lengths = Lengths(round(traffic.prompt_tokens), round(traffic.output_tokens), asked.prefix_cached)
        limits = Limits(asked.slo.ttft_ms / 1000, asked.slo.itl_ms / 1000)
        prices = {kind: asked.price(kind) for kind in (prefill_kind, decode_kind)}
        try:
            return search(
                asked.shape,
                self.hardware.gpus,
                lengths,
                limits,
                asked.gpu(prefill_kind),
                decode_gpu=asked.gpu(decode_kind),
                kv_dtype=asked.kv_dtype,
                prices=prices,
            )
        except NoLayout:
            return None

    def _smallest(self, kind: str) -> int:
        refused: DoesNotFit | None = None
        for degree in DEGREES:
            if degree > self.hardware.gpus:
                break
            try:
                model_on(self.asked, kind, degree)
            except DoesNotFit as misfit:
                refused = misfit
            else:
                return degree
        assert refused is not None  # the degree 1 was tried
        raise refused

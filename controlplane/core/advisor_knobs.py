"""Every input of the advisor as something to turn: what would change the verdict, with all that depends on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from controlplane.core import kvsize
from controlplane.core.advisor_flips import MOST_GBPS, MOST_GPUS, hardware_knobs
from controlplane.core.advisor_offline import MODES, Offline
from controlplane.core.advisor_types import Gain, Knob, Situation
from controlplane.core.gpus import GPUS
from controlplane.core.protocol import Mode, Role
from controlplane.core.workload import Cell, Mix

TURN = 16.0
"""An input is turned up to so many times its value, or its inverse."""
COARSE = 1.5
Seen = tuple[Situation, Callable[[], Gain | None]]


def knobs(asked: Offline) -> tuple[Knob, ...]:
    """Every input, turned with all that depends on it: KV, decode share and gain. Degrees are those of the best layouts, or
    twice as much; where targets or kinds of GPU are turned, all."""
    offline = _chosen(asked)
    mix = offline.mix
    scales = (
        ("prompt", mix.prompt_tokens, lambda factor: _scaled(mix, factor, 1.0)),
        ("output", mix.output_tokens, lambda factor: _scaled(mix, 1.0, factor)),
    )
    found = [
        Knob(
            name,
            now,
            max(2.0, now / TURN),
            now * TURN,
            lambda value, now=now, scaled=scaled: _seen(replace(offline, mix=scaled(value / now))),  # type: ignore[misc]
            lambda value: f"{value:,.0f} tokens",
            step=COARSE,
        )
        for name, now, scaled in scales
    ]
    found.append(
        Knob(
            "prefix hits",
            mix.prefix_hit_share,
            0.01,
            0.99,
            lambda value: _seen(replace(offline, mix=_cached(mix, value))),
            lambda value: f"{100 * value:.0f} %",
            whole=False,
            step=COARSE,
        )
    )
    free = replace(offline, degrees=asked.degrees)
    return (*found, *_hardware(offline), *_targets(free), *_kinds(free), _precision(offline))


def _targets(offline: Offline) -> Iterator[Knob]:
    """TTFT and ITL of the SLO."""
    slo = offline.slo
    for name, field_name, digits in (("TTFT target", "ttft_ms", 0), ("ITL target", "itl_ms", 1)):
        now = float(getattr(slo, field_name))
        yield Knob(
            name,
            now,
            now / TURN,
            now * TURN,
            lambda value, of=field_name: _seen(replace(offline, slo=replace(slo, **{of: value}))),  # type: ignore[misc]
            lambda value, digits=digits: f"{value:,.{digits}f} ms",  # type: ignore[misc]
            whole=False,
            step=COARSE,
        )


def _kinds(offline: Offline) -> Iterator[Knob]:
    """Other kinds of GPU that hold the model; prefill's and decode's together while they are the same."""
    same = offline.prefill_gpu == offline.decode_gpu
    turned = (
        (("GPU", ("prefill_gpu", "decode_gpu")),)
        if same
        else (("prefill GPU", ("prefill_gpu",)), ("decode GPU", ("decode_gpu",)))
    )
    for name, fields in turned:

        def at(kind: str, fields: tuple[str, ...] = fields) -> Offline:
            return replace(offline, **dict.fromkeys(fields, kind))  # type: ignore[arg-type]

        fitting = tuple(kind for kind in GPUS if at(kind).search.options("mixed") and at(kind).search.options("prefill"))
        now = getattr(offline, fields[0])
        yield Knob(name, now, 0, 0, lambda kind, at=at: _seen(at(kind)), str, choices=fitting)  # type: ignore[misc]


def _precision(offline: Offline) -> Knob:
    """The KV cache in half as many bytes, or in the usual ones."""
    now = "fp8" if kvsize.kv_element_bytes(offline.shape, offline.kv_dtype) == 1 else "bf16"
    return Knob(
        "KV precision",
        now,
        0,
        0,
        lambda dtype: _seen(replace(offline, kv_dtype=dtype)),
        str,
        choices=("bf16", "fp8"),
    )


def _hardware(offline: Offline) -> Iterator[Knob]:
    def changed(situation: Situation) -> Seen:
        return _seen(
            replace(
                offline,
                gpus=situation.gpus,
                network_gbps=situation.network_gbps,
                transport=situation.transport,
            )
        )

    for knob in hardware_knobs(offline.situation, changed):
        if isinstance(knob.now, str):
            yield knob
            continue
        top = {"GPUs": MOST_GPUS, "network": MOST_GBPS}[knob.name]
        yield replace(knob, low=max(1.0, knob.now / TURN), high=min(top, knob.now * TURN), step=COARSE)


def _chosen(offline: Offline) -> Offline:
    """With the degrees and rates of its best layouts to look for first."""
    degrees: dict[Role, tuple[int, ...]] = {}
    near: dict[Mode, float] = {}
    for mode in MODES[:2]:
        best = offline.best(mode)
        if best:
            near[mode] = best[0]
            degrees |= {pool.role: (pool.tensor_parallel, 2 * pool.tensor_parallel) for pool in best[1].pools}
    return replace(offline.with_degrees(degrees), near=near)


def _seen(offline: Offline) -> Seen:
    return offline.situation, lambda: offline.gain


def _scaled(mix: Mix, prompt: float, output: float) -> Mix:
    return Mix(
        tuple(
            Cell(
                cell.requests,
                max(1.0, cell.prompt_tokens * prompt),
                max(2.0, cell.output_tokens * output),
                cell.cached_tokens * prompt,
            )
            for cell in mix.cells
        )
    )


def _cached(mix: Mix, share: float) -> Mix:
    return Mix(
        tuple(cell._replace(cached_tokens=min(cell.prompt_tokens - 1, cell.prompt_tokens * share)) for cell in mix.cells)
    )

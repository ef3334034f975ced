"""The five checks and the rule for short prompts, each with its value, threshold and one plain sentence. Pure.

Thresholds: the project's design, section 6.
"""

from __future__ import annotations

from controlplane.core.advisor_types import Check, CheckName, Measured, Situation, State
from controlplane.core.counts import some

DECODE_SHARE = 0.7
LARGE_KV_BYTES = 500e6
FAST_NETWORK_GBPS = 100.0
HELD_SHARE = 0.8
MIN_GPUS = 16
SHORT_PROMPT_TOKENS = 512
SHORT_OUTPUT_TOKENS = 100
MIN_SAMPLES = 100
"""Requests behind a measured figure, below which it does not decide."""

DECISIVE: tuple[CheckName, ...] = ("decode_share", "gpus", "transport")


def all_checks(situation: Situation) -> tuple[Check, ...]:
    """The five in their order, then the rule for short prompts (it fails where it applies)."""
    return (
        _decode_share(situation.decode_share),
        _kv_network(situation),
        _prefix_hits(situation.prefix_hits),
        _gpus(situation.gpus),
        _transport(situation),
        _short_prompts(situation),
    )


def known(figure: Measured) -> bool:
    """Whether the figure may decide."""
    return figure.value is not None and (figure.samples is None or figure.samples >= MIN_SAMPLES)


def transfer_s(size_bytes: float, gbps: float) -> float:
    """Seconds that so many bytes take on the wire at `gbps` (10⁹ bits/s)."""
    return size_bytes * 8 / (gbps * 1e9)


def _decode_share(figure: Measured) -> Check:
    share = figure.value or 0.0
    state = _state(figure, share >= DECODE_SHARE)
    sentence = {
        "pass": f"{_part(share)} of a request's time is decoding, which other requests' prefills stall on a shared engine.",
        "fail": f"Only {_part(share)} of a request's time is decoding: little is gained by keeping prefills away.",
        "unknown": _unknown(figure, "how much of a request's time is decoding"),
    }[state]
    return _check(
        "decode_share",
        "Decode share of request time",
        state,
        figure,
        DECODE_SHARE,
        "share",
        _percent(figure),
        "70 % or more",
        sentence,
    )


def _kv_network(situation: Situation) -> Check:
    figure, gbps = situation.kv_bytes_per_request, situation.network_gbps
    size = figure.value or 0.0
    slow = gbps < FAST_NETWORK_GBPS
    state: State = "pass" if not slow else _state(figure, size <= LARGE_KV_BYTES)
    wire = f"{_gb(size)} of KV take {transfer_s(size, gbps) * 1e3:,.0f} ms at {gbps:g} Gb/s"
    sentence = {
        "pass": f"A request's {wire}." if figure.value is not None else f"The network's {gbps:g} Gb/s are enough.",
        "fail": f"A request's {wire}, which puts the first token at risk: above 500 MB it wants 100 Gb/s or more.",
        "unknown": _unknown(figure, "how much KV a request moves"),
    }[state]
    return _check(
        "kv_network",
        "KV per request against the network",
        state,
        figure,
        LARGE_KV_BYTES,
        "bytes",
        f"{_gb(size) if figure.value is not None else '—'}, {gbps:g} Gb/s",
        "500 MB or less, or 100 Gb/s or more",
        sentence,
    )


def _prefix_hits(figure: Measured) -> Check:
    share = figure.value or 0.0
    state = _state(figure, share < HELD_SHARE)
    sentence = {
        "pass": f"{_part(1 - share)} of a prompt is new to the decode side, so a prefill pool has work to take off it.",
        "fail": f"{_part(share)} of a prompt's KV is on the decode side already, so a prefill pool is of little value.",
        "unknown": _unknown(figure, "how much of a prompt the decode side holds already"),
    }[state]
    return _check(
        "prefix_hits",
        "KV already on the decode side",
        state,
        figure,
        HELD_SHARE,
        "share",
        _percent(figure),
        "under 80 %",
        sentence,
    )


def _gpus(gpus: int) -> Check:
    enough = gpus >= MIN_GPUS
    sentence = (
        f"{gpus:,} GPUs make two pools that can be balanced."
        if enough
        else f"With {some(gpus, 'GPU')}, fewer than 16, scheduling two pools costs more than it gains."
    )
    return _check(
        "gpus",
        "GPUs",
        "pass" if enough else "fail",
        Measured(gpus, source="counted"),
        MIN_GPUS,
        "gpus",
        f"{gpus:,}",
        "16 or more",
        sentence,
    )


def _transport(situation: Situation) -> Check:
    rdma = situation.transport == "rdma"
    sentence = (
        "RDMA moves KV from GPU to GPU without copies on the hosts."
        if rdma
        else "TCP copies KV through both hosts, so that every handoff is slower than with RDMA."
    )
    return _check(
        "transport",
        "Transport",
        "pass" if rdma else "fail",
        Measured(float(rdma)),
        1.0,
        "transport",
        situation.transport.upper(),
        "RDMA",
        sentence,
    )


def _short_prompts(situation: Situation) -> Check:
    prompt, output = situation.prompt_tokens, situation.output_tokens
    short = (prompt.value or 0.0) < SHORT_PROMPT_TOKENS and (output.value or 0.0) < SHORT_OUTPUT_TOKENS
    unknown = not (known(prompt) and known(output))
    state: State = "unknown" if unknown else "fail" if short else "pass"
    lengths = f"{prompt.value or 0:,.0f} prompt and {output.value or 0:,.0f} output tokens"
    sentence = {
        "pass": f"With {lengths} on average, requests are long enough to be split.",
        "fail": f"With {lengths} on average, a handoff costs more than it saves.",
        "unknown": _unknown(prompt if not known(prompt) else output, "how long requests are"),
    }[state]
    return _check(
        "short_prompts",
        "Not only short requests",
        state,
        prompt,
        SHORT_PROMPT_TOKENS,
        "tokens",
        "—" if unknown else f"{prompt.value or 0:,.0f} in, {output.value or 0:,.0f} out",
        "512 in or more, or 100 out or more",
        sentence,
    )


def _check(
    name: CheckName,
    title: str,
    state: State,
    figure: Measured,
    threshold: float,
    unit: str,
    value_text: str,
    threshold_text: str,
    sentence: str,
) -> Check:
    return Check(
        name=name,
        title=title,
        state=state,
        value=figure.value,
        threshold=threshold,
        unit=unit,
        value_text=value_text,
        threshold_text=threshold_text,
        sentence=sentence,
        source=figure.source,
        window_s=figure.window_s,
        samples=figure.samples,
        confidence=figure.confidence(threshold),
    )


def _state(figure: Measured, good: bool) -> State:
    if not known(figure):
        return "unknown"
    return "pass" if good else "fail"


def _unknown(figure: Measured, what: str) -> str:
    if figure.value is None:
        return f"It is not known {what}: nothing was measured yet."
    return f"It is not known well enough {what}: {figure.samples or 0:,} requests were seen, {MIN_SAMPLES} are needed."


def _percent(figure: Measured) -> str:
    return "—" if figure.value is None else _part(figure.value)


def _part(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"

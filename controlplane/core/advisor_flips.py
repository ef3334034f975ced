"""What would change the verdict: the nearest value of each input at which it is another, all else as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from controlplane.core.advisor_checks import all_checks
from controlplane.core.advisor_types import TRANSPORTS, Flip, Gain, Knob, Measured, Situation, Verdict
from controlplane.core.advisor_verdict import judge, needs_gain

PRECISION = 1e-3
MOST_TOKENS = 1 << 20
MOST_GPUS = 4096
MOST_GBPS = 3200.0
WORDS: dict[Verdict, str] = {
    "yes": "yes",
    "no": "no",
    "not_enough_data": "not enough data",
    "try_canary": "try a canary",
}


def flips(verdict: Verdict, knobs: Sequence[Knob]) -> tuple[Flip, ...]:
    """One for each knob that can change the verdict; none of those that cannot."""
    found = (_flip(verdict, knob) for knob in knobs)
    return tuple(flip for flip in found if flip)


def plain_knobs(situation: Situation, gain: Gain | None) -> tuple[Knob, ...]:
    """Every figure turned alone (a longer prompt also has more KV); the forecast's gain stays as it is."""

    def lengths(tokens: float) -> Situation:
        prompt, size = situation.prompt_tokens, situation.kv_bytes_per_request
        grown = size.value * tokens / prompt.value if size.value is not None and prompt.value else size.value
        return replace(situation, prompt_tokens=_with(prompt, tokens), kv_bytes_per_request=_with(size, grown))

    def output(tokens: float) -> Situation:
        return replace(situation, output_tokens=_with(situation.output_tokens, tokens))

    def decode(share: float) -> Situation:
        return replace(situation, decode_share=_with(situation.decode_share, share))

    def hits(share: float) -> Situation:
        return replace(situation, prefix_hits=_with(situation.prefix_hits, share))

    figures = (
        ("prompt", situation.prompt_tokens, 1.0, MOST_TOKENS, lengths, _tokens, True),
        ("output", situation.output_tokens, 1.0, MOST_TOKENS, output, _tokens, True),
        ("decode share", situation.decode_share, 0.01, 1.0, decode, _share, False),
        ("prefix hits", situation.prefix_hits, 0.01, 1.0, hits, _share, False),
    )
    knobs = [
        Knob(name, figure.value, low, high, lambda value, turn=turn: (turn(value), lambda: gain), text, whole)  # type: ignore[misc]
        for name, figure, low, high, turn, text, whole in figures
        if figure.value is not None
    ]
    return (*knobs, *hardware_knobs(situation, lambda changed: (changed, lambda: gain)))


def hardware_knobs(situation: Situation, judged: Any) -> Iterator[Knob]:
    """GPUs, network and transport. `judged` gives the situation that is to be judged, and the gain, of a changed one."""
    yield Knob("GPUs", situation.gpus, 1, MOST_GPUS, lambda value: judged(replace(situation, gpus=round(value))), _count)
    yield Knob(
        "network",
        situation.network_gbps,
        1.0,
        MOST_GBPS,
        lambda value: judged(replace(situation, network_gbps=value)),
        lambda value: f"{value:,.0f} Gb/s",
    )
    yield Knob(
        "transport",
        situation.transport,
        0,
        0,
        lambda value: judged(replace(situation, transport=value)),
        str.upper,
        choices=TRANSPORTS,
    )


def _flip(verdict: Verdict, knob: Knob) -> Flip | None:
    if isinstance(knob.now, str):
        others = ((choice, _verdict(knob, choice)) for choice in knob.choices if choice != knob.now)
        return next((_told(knob, choice, is_) for choice, is_ in others if is_ != verdict), None)
    near = [found for found in (_towards(verdict, knob, knob.high), _towards(verdict, knob, knob.low)) if found]
    if not near:
        return None
    value, becomes = min(near, key=lambda found: abs(found[0] - float(knob.now)) / max(float(knob.now), 1e-9))
    return _told(knob, value, becomes)


def _towards(verdict: Verdict, knob: Knob, end: float) -> tuple[float, Verdict] | None:
    """The first value on the way to `end` with another verdict."""
    last = min(max(float(knob.now), knob.low), knob.high)
    up = end > last
    while last != end:
        step = max(last, PRECISION) * knob.step if up else last / knob.step
        if knob.whole:
            step = max(step, last + 1) if up else min(step, last - 1)
            step = float(round(step))
        value = min(step, end) if up else max(step, end)
        becomes = _verdict(knob, value)
        if becomes != verdict:
            return _between(verdict, knob, last, value)
        last = value
    return None


def _between(verdict: Verdict, knob: Knob, same: float, other: float) -> tuple[float, Verdict]:
    """`other` moved as near to `same` as it stays another verdict."""
    while abs(other - same) > (1 if knob.whole else PRECISION * max(1.0, abs(same))):
        middle = (same + other) / 2
        if knob.whole:
            middle = float(round(middle))
            if middle in (same, other):
                break
        if _verdict(knob, middle) == verdict:
            same = middle
        else:
            other = middle
    return other, _verdict(knob, other)


def _verdict(knob: Knob, value: Any) -> Verdict:
    situation, gain = knob.at(value)
    checks = all_checks(situation)
    return judge(checks, gain() if needs_gain(checks) else None).verdict


def _told(knob: Knob, value: Any, verdict: Verdict) -> Flip:
    now, at = knob.text(knob.now), knob.text(value)
    if isinstance(value, float):
        at = f"{at} or less" if value < float(knob.now) else f"{at} or more"
    sentence = f"With {knob.name} at {at} instead of {now} the verdict would be {WORDS[verdict]}."
    return Flip(knob.name, now, at, value, verdict, sentence)


def _with(figure: Measured, value: float | None) -> Measured:
    return replace(figure, value=value)


def _tokens(value: float) -> str:
    return f"{value:,.0f} tokens"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"

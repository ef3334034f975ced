"""What the field saw, what the model gives beside it by each named definition, and why they differ. Pure texts.

The figures of the field were told, not measured by this project; how they were measured is not known. So every definition
that could have been meant is shown, and the nearest is named; none is preferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
HALF = 2.0
"""What the field calls better once split: p99 half as long or less."""
FIELD_SHORT = (0.2, 0.3)
"""How much worse the field found short requests once split."""


@dataclass(frozen=True)
class Figure:
    definition: str
    value: str


@dataclass(frozen=True)
class Finding:
    """`field`: what was seen on real machines. `verdict` is computed from the figures, `why` holds whatever they are."""

    title: str
    field: str
    figures: tuple[Figure, ...]
    verdict: str
    why: str


def findings(document: Document) -> tuple[Finding, ...]:
    return (_prefill(document), _decode(document), _stalls(document), _p99(document), _short(document), _transfer(document))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def milliseconds(value: float) -> str:
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def times(value: float) -> str:
    return f"{value:.2f} ×" if value < 10 else f"{value:.1f} ×"


def gain(row: Document, name: str, rank: str = "p99", other: str = "split") -> float:
    """How many times longer `name` is whole than on another layout: above 1 the split is better."""
    return float(row["whole"][name][rank] / row[other][name][rank])


def _prefill(document: Document) -> Finding:
    cost, tokens = document["prefill"], document["long_tokens"][0]
    windows = document["timeline"]["prefill"]["windows"]
    shares = {
        "inside the matrix kernels of a prefill step": cost["tensor_peak"],
        "average of the whole prefill step": cost["tensor"],
        **{
            f"highest {each['seconds']:g} s average of a prefill engine ({_load(document, 'prefill')})": each["highest"]
            for each in windows
        },
        "MFU of the step (useful FLOPs ÷ peak)": cost["mfu"],
    }
    return Finding(
        f"Tensor activity while {tokens:,} prompt tokens are computed",
        "about 92 % in prefill bursts",
        _figures(shares),
        _nearest(shares, 0.92, 0.92),
        "A step is more than its matrix products: all-reduce, element-wise work and launches leave the tensor cores "
        "idle, so every average over time lies below the figure inside the kernels, and a monitor that averages shows "
        "about the whole step's at most. Activity is FLOPs ÷ peak at the clock under load, assumed to be 0.82 of the "
        "nominal one in prefill: that assumption moves all figures here but the MFU.",
    )


def _decode(document: Document) -> Finding:
    low, high = document["long"][0], document["long"][-1]
    shares = {f"average of a decode step, batch {each['batch']}": each["tensor"] for each in document["decode"]}
    shares |= {
        f"average while steps ran in the split's decode pool, {row['rate']:g} req/s": row["split"]["pools"]["decode"][
            "tensor_in_steps"
        ]
        for row in (low, high)
    }
    shares["inside the matrix kernels of a decode step, batch 1"] = document["decode"][0]["tensor_peak"]
    shares |= {
        f"average of a decode step, batch {each['batch']}, TP{each['tensor_parallel']}{_room(each)}": each["tensor"]
        for each in document["decode_other_tp"]
    }
    shares |= {f"MFU of a decode step, batch {each['batch']}": each["mfu"] for each in document["decode"][-1:]}
    return Finding(
        "Tensor activity in decode",
        "28–30 %",
        _figures(shares),
        _nearest(shares, 0.28, 0.30),
        "The tensor cores multiply whole tiles of 128 rows, so one sequence keeps them as busy as 128; what is useful"
        " of that is the MFU. The share falls as the batch grows, because attention takes longer to read more KV. It "
        "depends on the tensor-parallel degree, which the field's story does not tell: more GPUs spend more of a step"
        " on all-reduce.",
    )


def _stalls(document: Document) -> Finding:
    row = _at(document, document["timeline"]["rate"])
    whole, split = row["whole"], row["split"]
    figures = {
        "median gap between tokens, whole / split": f"{milliseconds(whole['itl_ms']['p50'])} / "
        f"{milliseconds(split['itl_ms']['p50'])}",
        "longest gap, whole / split": f"{milliseconds(whole['longest_gap_ms'])} / {milliseconds(split['longest_gap_ms'])}",
        "share of tokens that came over 5 times the median late, whole / split": f"{percent(whole['stalled'])} / "
        f"{percent(split['stalled'])}",
        "one prefill step alone": milliseconds(document["prefill"]["milliseconds"]),
    }
    seen = whole["stalled"] > 0 and split["stalled"] == 0
    return Finding(
        f"Stalls between tokens when both phases share a GPU, at {row['rate']:g} req/s",
        "seen; gone once split",
        tuple(Figure(*each) for each in figures.items()),
        "agrees: whole engines stall for about a prefill step, split ones never" if seen else "differs: see the figures",
        "A step ends for all its sequences at once. With prompts no longer than the token budget, a whole prompt "
        "joins a decode step, and every running answer waits for it. In a decode pool a step only computes the last "
        "prompt token again.",
    )


def _p99(document: Document) -> Finding:
    names = {
        "itl_ms": "time between tokens",
        "e2e_ms": "whole answer",
        "tpot_ms": "a request's mean time per token",
        "ttft_ms": "time to first token",
    }
    rows = document["long"]
    figures = [
        Figure(f"p99 of {what}, whole ÷ split", ", ".join(times(gain(row, name)) for row in rows))
        for name, what in names.items()
    ]
    reached = [
        f"{what} from {first:g} req/s on"
        for name, what in names.items()
        if (first := next((row["rate"] for row in rows if gain(row, name) >= HALF), None)) is not None
    ]
    return Finding(
        "p99 latency once split",
        "2 × better or more",
        (_loads(rows), *figures),
        f"2 × or more: {'; '.join(reached)}; not in the rest" if reached else "differs: 2 × is reached nowhere",
        "What is split off is the waiting of answers for other prompts, so the gaps between tokens gain at once when "
        "stalls are more than 1 % of them, and whole answers gain with load. The time to first token gets longer: to "
        "the prefill come the KV transfer and a decode step, and fewer engines share the prompts. Each split is the "
        "best for its rate by p99 of the whole answer.",
    )


def _short(document: Document) -> Finding:
    rows = document["short"]
    figures = [
        Figure(
            f"{what}, {rank}, {name}",
            ", ".join(_worse(gain(row, key, rank, other)) for row in rows),
        )
        for other, name in (("split", "best split"), ("split_for_long", f"split for long prompts ({_split(rows[0])})"))
        for key, what in (("ttft_ms", "time to first token"), ("e2e_ms", "whole answer"))
        for rank in ("p50", "p99")
    ]
    figures += [_capacity(document, "short", "short requests"), _capacity(document, "long", "long ones")]
    answer_ms = rows[0]["whole"]["e2e_ms"]["p50"]
    low, high = (milliseconds(share * answer_ms) for share in FIELD_SHORT)
    worst = max(1 / gain(row, "e2e_ms") - 1 for row in rows)
    first = min(1 / gain(row, "ttft_ms", "p50") - 1 for row in rows)
    return Finding(
        f"Short requests ({document['short_tokens'][0]} prompt and {document['short_tokens'][1]} answer tokens) once split",
        "20–30 % worse",
        (_loads(rows), *figures),
        f"first tokens come at least {100 * first:.0f} % later at p50; whole answers are at most {100 * worst:.1f} % "
        f"worse at p99; the rate that the GPUs can serve changes by {_capacity_change(document, 'short')}",
        "The simulation charges a split request for the bytes it moves, one more decode step and the queues; it knows "
        "no fixed cost of a handoff (handshakes, two servers' scheduling, the router's own time). To make a whole answer "
        f"20–30 % worse, such costs alone would have to be {low} to {high} a request. The highest rate is counted as "
        "capacity tools do: one prompt in a prefill step, which for short ones mostly reads weights, and allowances for "
        "split pools (core/comparison.py). Whether the field meant answers, first tokens or requests per GPU is not known.",
    )


def _capacity(document: Document, kind: str, what: str) -> Figure:
    capacity, slo = document["capacity"][kind], document["slo"]
    limits = f"TTFT {milliseconds(slo['ttft_ms'])}, ITL {milliseconds(slo['itl_ms'])}"
    return Figure(
        f"highest rate, {what}: steady means within {limits}",
        f"{capacity['whole']:.0f} → {capacity['split']:.0f} req/s ({_capacity_change(document, kind)})",
    )


def _capacity_change(document: Document, kind: str) -> str:
    capacity = document["capacity"][kind]
    return f"{100 * (capacity['split'] / capacity['whole'] - 1):+.0f} %"


def _transfer(document: Document) -> Finding:
    figures = [
        Figure(f"KV cache of {document['long_tokens'][0]:,} tokens", f"{document['transfer_bytes'] / 1e9:.3f} GB"),
        *(Figure(f"at {each['gbps']:g} Gb/s", f"{each['milliseconds']:.1f} ms") for each in document["transfer"]),
    ]
    return Finding(
        "KV transfer of one long prompt",
        "107 ms at 100 Gb/s, 27 ms at 400",
        tuple(figures),
        "the same, by arithmetic: bytes × 8 ÷ (Gb/s × 10⁹)",
        "A link shared by transfers takes longer; the simulations above share it.",
    )


def _room(other: Document) -> str:
    return "" if other["fits"] else " (too small for its KV cache)"


def _load(document: Document, role: str) -> str:
    timeline = document["timeline"]
    return f"1 of {timeline['engines'][role]}, {timeline['rate']:g} req/s in all"


def _at(document: Document, rate: float) -> Document:
    found: Document = next(row for row in document["long"] if row["rate"] == rate)
    return found


def _figures(shares: Mapping[str, float]) -> tuple[Figure, ...]:
    return tuple(Figure(definition, percent(share)) for definition, share in shares.items())


def _nearest(shares: Mapping[str, float], low: float, high: float) -> str:
    """Which definition comes nearest to the field's range, and by how many points it misses it."""

    def missed(share: float) -> float:
        return max(low - share, share - high, 0.0)

    name = min(shares, key=lambda each: missed(shares[each]))
    points = 100 * missed(shares[name])
    return f"nearest: {name}, {percent(shares[name])}" + (f" ({points:.1f} points off)" if points >= 0.05 else "")


def _loads(rows: Sequence[Document]) -> Figure:
    """What the lists of figures that follow belong to."""
    return Figure("requests per second", ", ".join(f"{row['rate']:g}" for row in rows))


def _worse(gained: float) -> str:
    change = 100 * (1 / gained - 1)
    return f"{change:+.1f} %" if abs(change) < 10 else f"{change:+.0f} %"


def _split(row: Document) -> str:
    pools = row["split_for_long"]["pools"]
    return f"{pools['prefill']['engines']} + {pools['decode']['engines']} engines"

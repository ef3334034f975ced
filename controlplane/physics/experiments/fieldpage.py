"""The field story as one HTML file that needs nothing else: what was seen, what the model gives, and charts of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.physics.experiments.fieldrows import findings, gain, milliseconds, percent, times
from controlplane.physics.page import standalone

WHAT = ("prompt", "answer tokens")
CHART_LATENCIES = ("itl_ms", "e2e_ms", "ttft_ms")


def rendered(document: Mapping[str, Any]) -> str:
    """The page of a document of `fieldstory.field_story`."""
    context = {
        "title": f"{document['model']} on {document['gpus']} {document['gpu']}",
        "findings": findings(document),
        "kpis": _kpis(document),
        "timeline": document["timeline"],
        "layouts": [
            {"rate": f"{row['rate']:g}", **{role: pool["engines"] for role, pool in row["split"]["pools"].items()}}
            for row in document["long"]
        ],
        "guesses": document["guesses"],
        "tokens": " and ".join(f"{count:,} {what}" for count, what in zip(document["long_tokens"], WHAT, strict=True)),
        "document": document,
        "data": {"timeline": document["timeline"], "long": [_curve(row) for row in document["long"]]},
    }
    return standalone("field-story", context, ("forecast", "field-story"))


def _curve(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rate": row["rate"],
        **{name: {side: row[side][name]["p99"] for side in ("whole", "split")} for name in CHART_LATENCIES},
    }


def _kpis(document: Mapping[str, Any]) -> list[dict[str, str]]:
    busiest = document["long"][-1]
    prefill, decode = document["prefill"], document["decode"][0]
    link = document["transfer"][-1]
    longest = max(row["whole"]["longest_gap_ms"] for row in document["long"])
    return [
        _kpi("Prefill", "tensor, in kernels", percent(prefill["tensor_peak"]), "the field: about 92 %"),
        _kpi("Decode", "tensor, batch 1", percent(decode["tensor"]), "the field: 28–30 %"),
        _kpi("Longest gap", "between tokens, whole", milliseconds(longest), "split: no stalls"),
        _kpi("ITL p99", f"gain at {busiest['rate']:g} req/s", times(gain(busiest, "itl_ms")), "the field: 2 × or more"),
        _kpi("Answer p99", f"gain at {busiest['rate']:g} req/s", times(gain(busiest, "e2e_ms")), "the field: 2 × or more"),
        _kpi("KV transfer", f"at {link['gbps']:g} Gb/s", milliseconds(link["milliseconds"]), "the field: 27 ms"),
    ]


def _kpi(label: str, window: str, text: str, foot: str) -> dict[str, str]:
    value, _, unit = text.rpartition(" ")
    return {"label": label, "window": window, "value": value, "unit": unit, "foot": foot}

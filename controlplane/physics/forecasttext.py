"""A forecast's document in words: its headline, verdict and inputs, and how figures are written. Units are in every text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
MISSING = "—"
_HIGHEST = {
    "steady": "the highest rate whose steady means keep the SLO",
    "p99": "the highest rate whose simulated p99s keep the SLO",
}


def headline(document: Document) -> str:
    """The model and its traffic in a line."""
    traffic, runs = document["inputs"]["traffic"], document["inputs"]["simulations_per_layout"]
    named = "name" in traffic
    what = f"trace {traffic['name']}, {traffic['requests']:,} requests" if named else f"{traffic['arrival']} arrivals"
    lengths = f"{traffic['input_tokens']:,.0f} tokens in, {traffic['output_tokens']:,.0f} out on average"
    seeds = f" × {runs} seeds" if runs > 1 else ""
    load = f"{traffic['requests_per_second']:.3g} req/s for {traffic['seconds']:,.0f} s{seeds}"
    if document["inputs"]["saturate"]:
        load = f"at {_HIGHEST[document['inputs']['saturate']]}{seeds}"
    return f"{document['model']}: {lengths}, {load} ({what})"


def facts(document: Document) -> list[tuple[str, str]]:
    """What the forecast was made from, as label and text."""
    inputs = document["inputs"]
    traffic, slo = inputs["traffic"], inputs["slo"]
    load = f"{traffic['requests_per_second']:.4g} req/s for {traffic['seconds']:,.0f} s"
    if inputs["saturate"]:
        load = _HIGHEST[inputs["saturate"]]
    told = [
        ("Model", document["model"]),
        ("Traffic", traffic["name"] if "name" in traffic else f"drawn: {traffic['arrival']} arrivals"),
        ("Requests", load),
        ("Prompt, mean", f"{traffic['input_tokens']:,.0f} tokens"),
        ("Answer, mean", f"{traffic['output_tokens']:,.0f} tokens"),
    ]
    if "length_cv" in traffic:
        told.append(
            ("Variation", f"lengths {traffic['length_cv']:g}, gaps {traffic['arrival_cv']:g} (standard deviation ÷ mean)")
        )
    told += [
        ("Simulations per layout", f"{inputs['simulations_per_layout']}"),
        ("SLO", f"TTFT {limit(slo['ttft_ms'])}, ITL {limit(slo['itl_ms'])}"),
        ("Prefix held by every engine", f"{inputs['prefix_cached_tokens']:,} tokens"),
        ("Type of weights, of KV cache", f"{inputs['weights']}, {inputs['kv_dtype']} (auto: as the model's config says)"),
        ("Batch", f"{inputs['max_num_seqs']:,} sequences, {inputs['max_num_batched_tokens']:,} tokens per step"),
        ("GPU memory used", percent(inputs["memory_utilization"])),
    ]
    for kind, gpu in inputs["gpus"].items():
        price = f"{gpu['price_per_hour']:.2f} US$ per GPU-hour ({gpu['price_basis']})"
        network = f"{gpu['network_gbps']:g} Gb/s per engine ({gpu['network_basis']})"
        told.append((kind, f"{price}, {network}, efficiencies {gpu['efficiency_basis']}"))
    return told


def verdict(document: Document) -> tuple[str, ...]:
    """Who won, and a line for each of the others. Empty with one layout."""
    winner = document["winner"]
    if winner is None:
        return ()
    if winner["strain"] is None:
        return ("no layout serves requests within the SLO",)
    return f"{winner['layout']} is chosen{_at_limit(winner)}", *map(_compared, winner["others"])


def _compared(other: Document) -> str:
    if other["tie"]:
        return f"as many requests within the SLO per US$ as {other['layout']}{_at_limit(other)}"
    seeds = f", better in {other['seeds_won']} of {other['seeds']} seeds" if other["seeds"] > 1 else ""
    if other["ratio"] is None:
        return f"{other['layout']} keeps no request within the SLO{seeds}"
    return f"{other['ratio']:.2f} × as many requests within the SLO per US$ as {other['layout']}{_at_limit(other)}{seeds}"


def _at_limit(one: Document) -> str:
    return "" if one["strain"] is None else f" ({one['strain_of']} at {percent(one['strain'])} of its limit)"


def milliseconds(value: float | None) -> str:
    """`412 ms`, `12.4 ms`, `2.31 s`."""
    if value is None:
        return MISSING
    return f"{value / 1000:,.2f} s" if value >= 1000 else f"{number(value)} ms"


def limit(ms: float) -> str:
    """A target as it was given: `50 ms`, `1.5 s`."""
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


def percent(value: float | None) -> str:
    """Of a share: `99.9 %`, `0 %`."""
    if value is None:
        return MISSING
    return f"{100 * value:,.0f} %" if value < 0.0005 or value >= 0.9995 else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """Three digits or more: `2,334`, `72.9`, `7.81`, `0.81`."""
    if value is None:
        return MISSING
    return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"

"""The section of docs/model-accuracy.md about splits, and its figures. Text from figures; reads no files itself."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controlplane.core.comparison import TRTLLM, VLLM
from controlplane.core.splitplan import Plan
from controlplane.physics.accuracy import error_table
from controlplane.physics.split_reference import CLEAR, Compared, compared, figures, listed_errors

MISS, SHARE_MISS = 0.05, 0.1
"""Errors of the ratio, and of the prefill pool's share, that are told one by one; so is every wrong winner."""

_HEAD = """## Splits, against AIConfigurator

AIConfigurator 0.12.0 searched the best layout of one pool and of two (`split_search.json`, seven scenarios; nothing here was
fitted on them). *Ratio*: tokens/s per GPU of two pools ÷ of one. *At its layouts*: our times for its TP degrees, batches and
numbers of engines; the prompts per mixed step are not recorded, so the best by our times is taken. *Own search*: on its grid
(`core/splitengines.py`, `REFERENCE_GRID`). With seven scenarios p90 is the largest error. Where the ratio is within
{clear:.0%} of 1, step times that are a few percent off may name the other winner; a winner in brackets is the wrong one.
"""

_CHUNKS = """
One pool's TTFT is far off where the reference computed two prompts per mixed step (its TTFT says so in s3, s7 and s12) and
our times prefer one; tokens/s differ little between them.
"""

_CONVENTIONS = """
### Conventions

The winner depends on them: without the four factors of two pools' times and rates the ratio is that of the last column
above. They are experience of AIConfigurator's authors, not physics: each is a field of `core/comparison.Conventions` and is
found in its public source (main after 0.11.0). TTFT × 1.8 is no law: with Poisson arrivals at 0.9 load the mean is × 5.2
for one prefill engine and × 1.25 for twelve. KV transfer is in none of these figures. The forecast has queue and transfer.
"""

_DIFFERENT = """
Not followed: decode steps are taken at the mean context (AIConfigurator takes every 32nd step: 15 tokens less on average,
0.6% of a step at most); memory beside the KV cache is `core/perf`'s estimate; prompts are never cut between steps (its
default as well); its search drops some points of equal decode share to save time, ours tries all.
"""

_CAUSES: Mapping[str, str] = {
    "s2": "FP8 products and KV reads are taken to be as efficient as bf16 ones; no FP8 phase was fitted.",
    "s3": "Prompts of 256 tokens are shorter than any that was fitted (512), where fixed costs of a step weigh most.",
    "s5": "An 8-billion model and engines of one GPU are outside of what was fitted (70 billion, TP2 to TP8).",
    "s7": "The reference stayed below our batch on its coarse grid; one step of it moves throughput by several percent.",
    "s12": "FP8 products and KV reads are taken to be as efficient as bf16 ones; no FP8 phase was fitted.",
    "s14": "The TTFT limit falls between two batches of the coarse grid, and our TTFT is on the other side of it.",
}
"""What the misses of a scenario are put down to, by looking at its phases."""


def section() -> tuple[str, dict[str, Any]]:
    """The section as Markdown, and its figures (`split_reference.figures`). Deterministic."""
    rows = compared()
    found = figures(rows)
    parts = (
        _HEAD.format(clear=CLEAR),
        _ratios(rows),
        _summary(found),
        error_table(listed_errors(rows)),
        _CHUNKS,
        "### Misses of the comparison\n\n" + _misses(rows),
        _CONVENTIONS,
        _factors(),
        _DIFFERENT,
    )
    return "\n".join(part.strip("\n") + "\n" for part in parts), found


def _ratios(rows: Iterable[Compared]) -> str:
    lines = (
        f"| {row.scenario.name} | {row.scenario.title} | {row.scenario.ratio:.2f} "
        f"| {row.listed.ratio:.2f} ({row.listed_error:+.1%}) {_winner(row.listed.ratio > 1, row.right_when_listed)} "
        f"| {row.found.ratio or float('nan'):.2f} ({row.search_error:+.1%}) "
        f"{_winner(row.found.winner == 'disaggregated', row.right_when_searched)} "
        f"| {row.found.prefill_share or 0:.2f} / {row.scenario.prefill_share:.2f} | {row.bare.ratio:.2f} |"
        for row in rows
    )
    head = (
        "| | model, GPUs, backend, input / output | ratio | at its layouts | own search | prefill share, ours / its "
        "| without factors |"
    )
    return "\n".join((head, "|---|---|---:|---:|---:|---:|---:|", *lines)) + "\n"


def _winner(split: bool, right: bool) -> str:
    name = "two" if split else "one"
    return name if right else f"[{name}]"


def _summary(found: Mapping[str, Any]) -> str:
    listed, own = found["listed_ratio_error"], found["search_ratio_error"]
    return f"""
- At its layouts: error of the ratio {listed["median"]:.1%} in the median, {listed["max"]:.1%} at most.
  {_wrong(found, "listed")}
- Own search: error of the ratio {own["median"]:.1%} in the median, {own["p90"]:.1%} at p90.
  {_wrong(found, "search")}
  The prefill pool's share of GPUs differs by {found["prefill_share_error_max"]:.2f} at most.
"""


def _wrong(found: Mapping[str, Any], way: str) -> str:
    wrong, clear = _names(found[f"{way}_wrong_winners"]), _names(found[f"{way}_wrong_clear_winners"])
    return f"Wrong winners: {wrong}; further than {CLEAR:.0%} from a tie: {clear}."


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _misses(rows: Iterable[Compared]) -> str:
    lines = [textwrap.fill(line, 125, subsequent_indent="  ") for row in rows for line in _misses_of(row)]
    return "\n".join(lines) + "\n" if lines else "None.\n"


def _misses_of(row: Compared) -> Iterator[str]:
    name, cause = row.scenario.name, _CAUSES.get(row.scenario.name, "")
    listed, agg, disagg = row.listed, row.scenario.agg, row.scenario.disagg
    if abs(row.listed_error) > MISS or not row.right_when_listed:
        one, two = listed.aggregated_tokens / agg["tokens/s/gpu"] - 1, listed.split_tokens / disagg["tokens/s/gpu"] - 1
        slow = listed.prefill.seconds * 1000 / disagg["ttft"] - 1, listed.decode.seconds * 1000 / disagg["tpot"] - 1
        bound = "prefill" if listed.prefill_bound else "decode"
        yield (
            f"- **{name}, at its layouts** ({row.listed_error:+.1%}{_other_winner(row.right_when_listed)}): tokens/s of one "
            f"pool {one:+.1%}, of two {two:+.1%}. Time of a prompt {slow[0]:+.1%}, of a decode step {slow[1]:+.1%}; the "
            f"{bound} pool is the slower one. {cause}"
        )
    if abs(row.search_error) > MISS or abs(row.share_error) > SHARE_MISS or not row.right_when_searched:
        theirs = f"TP{agg['tp']}, batch {agg['bs']}"
        yield (
            f"- **{name}, own search** ({row.search_error:+.1%}{_other_winner(row.right_when_searched)}): one pool "
            f"{_beside(row, row.found.aggregated, agg, theirs)}; two pools "
            f"{_beside(row, row.found.disaggregated, disagg, _reference_split(disagg))}. {cause}"
        )


def _other_winner(right: bool) -> str:
    return "" if right else ", the other winner"


def _reference_split(disagg: Mapping[str, Any]) -> str:
    return f"{disagg['(p)workers']}xTP{disagg['(p)tp']}+{disagg['(d)workers']}xTP{disagg['(d)tp']}, batch {disagg['(d)bs']}"


def _beside(row: Compared, plans: Sequence[Plan], reference: Mapping[str, Any], theirs: str) -> str:
    if not plans:
        return f"not found (its: {theirs})"
    plan = plans[0]
    pools = "+".join(f"{pool.engines}xTP{pool.tensor_parallel}" for pool in plan.layout.pools)
    error = plan.tokens_per_second / row.scenario.gpus / reference["tokens/s/gpu"] - 1
    return f"{error:+.1%} with {pools}, batch {plan.batches[-1]} (its: {theirs})"


def _factors() -> str:
    trtllm = TRTLLM.factors
    lines = (f"| `{name}` | {value:.4g} | {trtllm[name]:.4g} |" for name, value in VLLM.factors.items())
    return "\n".join(("| convention | vllm | trtllm |", "|---|---:|---:|", *lines)) + "\n"

"""docs/model-accuracy.md: how the phase model was fitted, how far it is from measurements. Text from figures; no files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from controlplane.core.gpus import GPUS
from controlplane.physics.fitting import PRIOR_WEIGHT
from controlplane.physics.fitting_errors import ErrorRow, Miss
from controlplane.physics.refit import Compared

_HEAD = """# How accurate the physics are

`python3 manage.py fit` writes this file; `fit --check` fails when the coefficients of `core/gpus.py` or this text no longer
match the measurements. Errors are |predicted ÷ measured − 1|; p90 is the smallest error that nine in ten phases do not
exceed. *Fitted*: the coefficients were chosen on these very phases. *Held out*: they were not.

## Method

- A step is the sum of its kernels, each limited by FLOPs or by bytes, plus all-reduces and launches (`core/perf.py`).
- Today's stack is fitted on the 28 phases of `phase_times.json` (Llama-3.1-70B in bf16 on vLLM, composed by AIConfigurator
  0.12.0 from measured kernels; H100 at TP2, 4 and 8, A100 at TP4).
- The 2023 stack (`--stack 2023`) is fitted on Splitwise's measurements of Llama-2-70B (Patel et al., ISCA 2024), on top of
  today's efficiencies. BLOOM-176B gets its host floor from one decode row per GPU and nothing else.
- Left out: the 420 `h100-80gb-pcap` rows, which are the H100's prompt times × 1.3 exactly, and Llama on two GPUs with batch
  64, which did not fit (its prompt times would need 6 to 9 × the GPUs' peak). Equal runs are replaced by their median.
- Least squares on ln(predicted ÷ measured) with a soft-L1 loss (`scipy.optimize.least_squares`), deterministic.
- Launches and all-reduces cannot be told apart by rows that all have several GPUs: held-out fits without a prior pushed
  one of them to zero. Each coefficient is therefore held weakly near a round value: a factor 2 in a fixed cost (1.3 in a
  share) costs as much as one row that is off by {prior:.0%}. Those round values were chosen with published fits of the same
  data in view, so held-out errors with the prior flatter; the table has both.
- Fixed by hand, not fitted: 0.7 of DRAM bandwidth for elementwise kernels, half efficiency at 32 rows, 0.3 ms per step.
- Guesses: {guesses} (Hopper's efficiencies on their data sheets);
  experts' imbalance and token exchange (`ExpertCosts`); FP8 products; latent, windowed and state layers; more than 8 GPUs;
  prices; clocks under load. Commands and pages mark every time that rests on one of them.
"""

_CURRENT_TEXT = """
The form of the model was chosen with these 28 phases in view, so even held-out figures flatter a little. All of them are
Llama-3.1-70B: other models, TP1 and FP8 are checked by the splits below. The last row says what a guessed GPU may cost.
"""

_STACK_TEXT = """
A step of the 2023 stack takes max(gpu, host, overlap × (gpu + host)) + 0.3 ms per decode sequence: its processor launches
every layer's kernels, which is why TP8 decodes no faster than TP4. Without these terms today's model is 34% (prefill) and
47% (decode) too fast on these rows, by the median. Held out, TP8 is worst (decode 11% too fast by the median): TP2 and TP4
alone let the fit believe that more GPUs still help. Four forms were tried on these rows (a power mean with the host, a
maximum, both with the sequences inside the host's part, this one), so even the held-out figures flatter a little.
"""

_MISSES_TEXT = """
- **512-token prefill on H100**, today's stack: too slow at TP2 and too fast at TP8. One curve M/(M + 32) serves matrices of
  every width.
- **Many prompts at once on A100, TP4 and TP8, 2023** (512 tokens × 4 to 64): measured up to 1.3 × as long as one prompt of
  as many tokens, though that has more attention; at TP2 and on H100 the two are alike. The model knows tokens, not prompts,
  and lies between: too fast on many prompts, too slow on long single ones.
- **128 tokens on H100, TP8, 2023**: bound by the host; equal runs differ by 10% (standard deviation) among themselves.
- **BLOOM's prefill, 2023**: mostly too slow, up to 18%, as the factor on kernels was fitted on Llama's narrower matrices;
  too fast for many prompts at once on A100, like Llama's.
- **BLOOM's decode, batch 64, A100, 2023** (14% too fast): KV of 112 heads is read with the efficiency of Llama's 8.
"""


def document(
    coefficients: Sequence[Compared],
    current: Sequence[ErrorRow],
    stack: Sequence[ErrorRow],
    misses: Sequence[tuple[str, Miss]],
    sections: Iterable[str] = (),
) -> str:
    """The whole file. `misses` are (stack, phase); `sections` follow as they are."""
    guesses = ", ".join(name for name, gpu in GPUS.items() if gpu.basis == "guess")
    parts = [
        _HEAD.format(prior=PRIOR_WEIGHT, guesses=guesses),
        "## Coefficients\n\n" + coefficient_table(coefficients),
        "## Phases, today's stack\n\n" + error_table(current) + _CURRENT_TEXT,
        "## Phases, the 2023 stack\n\n" + error_table(stack) + _STACK_TEXT,
        "## Misses\n\n" + miss_table(misses) + _MISSES_TEXT,
        *sections,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def coefficient_table(coefficients: Sequence[Compared]) -> str:
    """Fitted beside committed, one a line."""
    rows = (
        f"| {each.name} | {_number(each.fitted, each.unit)} | {_number(each.committed, each.unit)} |"
        for each in coefficients
    )
    return _table("| coefficient | fitted | committed |", 2, rows)


def error_table(rows: Sequence[ErrorRow]) -> str:
    """Errors in %, one set of phases a line."""
    lines = (
        f"| {row.name} | {'fitted' if row.fitted else 'held out'} | {row.phases} "
        f"| {row.median:.1%} | {row.p90:.1%} | {row.largest:.1%} |"
        for row in rows
    )
    return _table("| phases | basis | number | median | p90 | max |", 4, lines, texts=2)


def miss_table(misses: Sequence[tuple[str, Miss]]) -> str:
    """The phases that are far off, with the sign of the error."""
    lines = (
        f"| {stack} | {phase.model} | {phase.gpu} | {phase.tensor_parallel} | {phase.kind} | {phase.tokens:.0f} "
        f"| {phase.batch} | {phase.milliseconds:.1f} ms | {miss.error:+.1%} |"
        for stack, miss in misses
        for phase in (miss.phase,)
    )
    return _table("| stack | model | GPU | TP | phase | tokens | batch | measured | error |", 6, lines, texts=3)


_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def same_text(one: str, other: str) -> bool:
    """Whether two documents say the same: equal words, and numbers that differ by no more than a last digit may."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(left) - float(right)) <= max(0.11, 0.006 * abs(float(left))) for left, right in pairs)


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value >= 1e-4 else f"{value * 1e6:.3g} µs"
    return f"{value:.3g}"


def _table(head: str, numbers: int, lines: Iterable[str], texts: int = 1) -> str:
    rule = "|" + "---|" * texts + "---:|" * numbers
    return "\n".join((head, rule, *lines)) + "\n"

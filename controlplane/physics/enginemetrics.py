"""An engine's metrics pages, and what happened between two of them: the figures that a calibration is fitted to.

Reads Prometheus text (format 0.0.4) of vLLM and of simulated engines. Several engine cores behind one server are summed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.calibration import LONGEST_NAME

STEPS = "vllm:iteration_tokens_total"
ITL = "vllm:inter_token_latency_seconds"
TTFT = "vllm:time_to_first_token_seconds"
QUEUE = "vllm:request_queue_time_seconds"
PREFILL = "vllm:request_prefill_time_seconds"
DECODE = "vllm:request_decode_time_seconds"
PROMPTS = "vllm:request_prompt_tokens"
ANSWERS = "vllm:request_generation_tokens"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
ALL_PROMPT_TOKENS = "vllm:prompt_tokens_total"
RUNNING = "vllm:num_requests_running"
USAGE = "vllm:kv_cache_usage_perc"
CACHE = "vllm:cache_config_info"

_WANTED = (STEPS, ITL, TTFT, QUEUE, PREFILL, DECODE, PROMPTS, ANSWERS)
MOST = 1e15
"""That any count, or seconds, of a real engine can come to."""
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*$", re.ASCII)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', re.ASCII)


class BadMetrics(ValueError):
    """A page cannot be used; the message says what is wrong with it and what to do."""


@dataclass(frozen=True)
class EnginePage:
    """One scrape. `figures`: sums and counts by sample name, labels summed, and BY_SOURCE per source as `name/source`."""

    at_s: float | None
    """On any clock; None: not known when."""
    figures: Mapping[str, float]
    step_buckets: Mapping[float, float] = field(default_factory=dict)
    """Steps of at most so many tokens, since the engine started."""
    model: str = ""
    kv_tokens: int | None = None
    block_size: int | None = None

    def get(self, name: str) -> float:
        return self.figures.get(name, 0.0)


def read_engine_page(text: str, at_s: float | None = None, source: str = "the page") -> EnginePage:
    """The figures of a metrics page. Raises BadMetrics, which names `source` and the family that is missing or torn."""
    figures: dict[str, float] = {}
    buckets: dict[float, float] = {}
    model = ""
    cache: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:") or "_created" in line:
            continue
        found = _SAMPLE.match(line)
        if not found:
            raise BadMetrics(f"{source}: {line[:80]!r} is no Prometheus sample; give a whole /metrics page")
        name, labels = found["name"], dict(_LABEL.findall(found["labels"] or ""))
        if name == CACHE:
            cache = cache or labels
            continue
        value = _number(found["value"], line, source)
        if value is None:
            continue
        model = model or labels.get("model_name", "")[:LONGEST_NAME]
        if name == f"{STEPS}_bucket":
            bound = _bound(labels.get("le", ""), line, source)
            buckets[bound] = buckets.get(bound, 0.0) + value
        elif not name.endswith("_bucket"):
            key = f"{name}/{labels.get('source', '')}" if name == BY_SOURCE else name
            figures[key] = figures.get(key, 0.0) + value
    missing = [name for name in _WANTED if f"{name}_count" not in figures]
    if missing or RUNNING not in figures:
        raise BadMetrics(
            f"{source} has no {(missing or [RUNNING])[0]}; give the /metrics of a vLLM (0.9 or newer) or simulated engine, "
            "not of a router, and with its statistics on"
        )
    block, blocks = _whole(cache.get("block_size")), _whole(cache.get("num_gpu_blocks"))
    tokens = block * blocks if block and blocks else None
    return EnginePage(at_s, figures, buckets, model, tokens, block)


def _bound(text: str, line: str, source: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadMetrics(f"{source}: {line[:80]!r} has no bound; give a whole /metrics page") from None


def _number(text: str, line: str, source: str) -> float | None:
    """None for NaN, which is Prometheus' "no value"."""
    try:
        value = float(text)
    except ValueError:
        raise BadMetrics(f"{source}: {line[:80]!r} has no number") from None
    if value < 0 or value > MOST:
        raise BadMetrics(f"{source}: {line[:80]!r} cannot be: counts and seconds are from 0 to {MOST:g}")
    return None if math.isnan(value) else value


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"0*[1-9]\d{0,11}", text, re.ASCII) and len(text) < 100 else None


@dataclass(frozen=True)
class Window:
    """What an engine did between two scrapes."""

    seconds: float | None
    steps: float
    prefill_steps: float
    """Of those, the ones that computed (a part of) a prompt."""
    gaps: float
    """Tokens that followed another token of their answer."""
    gaps_s: float
    """Times between them, added up over all sequences."""
    first_tokens: float
    ttft_s: float
    queue_s: float
    """Of requests that ended in this window, as are the next five."""
    finished: float
    prefill_s: float
    decode_s: float
    finished_prompt_tokens: float
    finished_output_tokens: float
    prompt_tokens: float
    computed_tokens: float
    """Of the prompts begun in this window: not from a cache, not from a peer."""
    context_each: float | None
    """Mean context of a running sequence, as the KV cache's usage shows it; None: nothing ran at either scrape."""

    @property
    def itl_s(self) -> float:
        return self.gaps_s / self.gaps

    @property
    def decoding(self) -> float:
        """Sequences that decode, averaged over time: what an arriving prompt meets. Without a time, as if no pause was."""
        return self.gaps_s / self.seconds if self.seconds else self.gaps / self.steps

    @property
    def sequences(self) -> float:
        """Mean number of sequences in the steps that decode: all but the prefills that met none (Poisson arrivals)."""
        return max(1.0, self.gaps / max(1.0, self.steps - self.prefill_steps * math.exp(-self.decoding)))

    def check(self) -> None:
        """Raises BadMetrics for figures that no engine can have had together, of which no model can be made."""
        prefills, finished = self.prefill_steps or 1.0, self.finished or 1.0
        for what, figure, most in (
            ("prompts in a step", self.first_tokens / prefills, 1e4),
            ("prompt tokens computed in a step", self.computed_tokens / prefills, 1e7),
            ("sequences that decode", max(self.decoding, self.sequences), 1e5),
            ("tokens of a sequence", self.context_each or 0.0, 1e8),
            ("tokens of a prompt", self.finished_prompt_tokens / finished, 1e8),
            ("tokens of an answer", self.finished_output_tokens / finished, 1e8),
            ("prompt tokens computed to all", self.computed_tokens / (self.prompt_tokens or math.inf), 1e3),
        ):
            if figure > most:
                raise BadMetrics(
                    f"the pages do not fit together: {figure:,.3g} {what}; give pages of one engine as they were scraped"
                )


def windows(pages: Sequence[EnginePage]) -> list[Window]:
    """What happened between each page and the next. Windows without a step are left out. Raises BadMetrics when a counter
    went back: the engine was started anew in between, or the pages are of different engines or in the wrong order."""
    most_running = max((page.get(RUNNING) for page in pages), default=0.0)
    found = [_window(before, after, most_running) for before, after in itertools.pairwise(pages)]
    told = [window for window in found if window.steps]
    for window in told:
        window.check()
    return told


def _window(before: EnginePage, after: EnginePage, most_running: float) -> Window:
    def grown(name: str) -> float:
        return after.get(name) - before.get(name)

    shrunk = [name for name in before.figures if name.endswith(("_sum", "_count", "_total")) and grown(name) < 0]
    if shrunk or before.model != after.model:
        raise BadMetrics(
            f"{shrunk[0] if shrunk else 'model_name'} went back between two pages: they must be of one start of one engine, "
            "the older first"
        )
    seconds = after.at_s - before.at_s if after.at_s is not None and before.at_s is not None else None
    computed = (
        grown(f"{BY_SOURCE}/local_compute") if f"{BY_SOURCE}/local_compute" in after.figures else grown(ALL_PROMPT_TOKENS)
    )
    first_tokens = grown(f"{TTFT}_count")
    return Window(
        seconds=seconds,
        steps=grown(f"{STEPS}_count"),
        prefill_steps=_prefill_steps(before, after, most_running, first_tokens, computed),
        gaps=grown(f"{ITL}_count"),
        gaps_s=grown(f"{ITL}_sum"),
        first_tokens=first_tokens,
        ttft_s=grown(f"{TTFT}_sum"),
        queue_s=grown(f"{QUEUE}_sum"),
        finished=grown(f"{PREFILL}_count"),
        prefill_s=grown(f"{PREFILL}_sum"),
        decode_s=grown(f"{DECODE}_sum"),
        finished_prompt_tokens=grown(f"{PROMPTS}_sum"),
        finished_output_tokens=grown(f"{ANSWERS}_sum"),
        prompt_tokens=grown(ALL_PROMPT_TOKENS),
        computed_tokens=computed,
        context_each=_context_each(before, after),
    )


def _prefill_steps(
    before: EnginePage, after: EnginePage, most_running: float, first_tokens: float, computed: float
) -> float:
    """Steps with more tokens than sequences ever ran are prefills. Prompts too short to be told apart count a step each."""
    steps = after.get(f"{STEPS}_count") - before.get(f"{STEPS}_count")
    edge = min((bound for bound in after.step_buckets if bound >= max(8.0, most_running)), default=math.inf)
    if not first_tokens or not math.isfinite(edge) or computed / first_tokens <= edge:
        return min(first_tokens, steps)
    short = after.step_buckets[edge] - before.step_buckets.get(edge, 0.0)
    return min(steps, max(0.0, steps - short))


def _context_each(before: EnginePage, after: EnginePage) -> float | None:
    seen = [
        page.get(USAGE) * page.kv_tokens / page.get(RUNNING)
        for page in (before, after)
        if page.kv_tokens and page.get(RUNNING) and page.get(USAGE)
    ]
    return sum(seen) / len(seen) if seen else None

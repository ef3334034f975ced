"""Finished requests as the requests page lists them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.core.protocol import Passed
from controlplane.telemetry.queries.figures import Figure

Order = Literal["newest", "slowest"]
MAX_PAGE = 200
MAX_MATCHED = 10_000
"""Rows are counted up to here."""


class BadCursor(ValueError):
    """A cursor that no page gave out, or that of another order."""


@dataclass(frozen=True)
class RequestRecord:
    """One finished request. Durations are ms, None where the stage did not happen; `at`: when it arrived, Unix seconds."""

    id: str
    at: float
    router: str
    model: str
    path: str
    reason: str
    status: int
    outcome: str
    stream: bool
    prefill_engine: str
    decode_engine: str
    queue_ms: float | None
    prefill_ms: float | None
    handoff_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    itl_p50_ms: float | None
    """Of the gaps between its first 256 chunks."""
    itl_p99_ms: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    kv_bytes: int | None
    retries: int
    resumes: int
    weight: int
    """How many requests it stands for: of those that went well, a busy router tells every so many."""
    session: str
    arm: str
    team: str
    """Of its API key; empty: it came without one."""
    passed: list[Passed]
    slo_ttft_ms: float | None
    """Of its model now; None: the model is gone."""
    slo_itl_ms: float | None


@dataclass(frozen=True)
class Stage:
    """A part of a request's time. `name`: queue, retries (legs that failed), prefill, handoff, first_byte (of a request that
    was not split: from its first leg to its first byte), decode."""

    name: str
    start_ms: float
    duration_ms: float


@dataclass(frozen=True)
class RequestFilter:
    """Empty and None mean any. `engine`: either leg's. `over_slo`: TTFT beyond the model's SLO. Times are Unix seconds of
    arrival."""

    since: float
    until: float
    models: Sequence[str] = ()
    paths: Sequence[str] = ()
    reasons: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    arms: Sequence[str] = ()
    teams: Sequence[str] = ()
    engine: str = ""
    prefill_engine: str = ""
    decode_engine: str = ""
    router: str = ""
    session: str = ""
    id_prefix: str = ""
    min_ttft_ms: float | None = None
    max_ttft_ms: float | None = None
    min_total_ms: float | None = None
    min_prompt_tokens: int | None = None
    over_slo: bool | None = None
    retried: bool | None = None


@dataclass(frozen=True)
class RequestPage:
    """`next_cursor`: for the rows after these; empty: there are none. `matched`: rows of the whole filter, at most
    MAX_MATCHED (`matched_more` says that there are more)."""

    rows: list[RequestRecord]
    next_cursor: str
    matched: int
    matched_more: bool


@dataclass(frozen=True)
class RequestSummary:
    """Of all requests that a filter matches, the sampled ones by what they stand for. `rows`: recorded ones."""

    requests: Figure
    over_slo: Figure
    failed: Figure
    rows: int


@dataclass(frozen=True)
class Marker:
    """An operation, for a vertical line in a chart. `label` is a few words; `finished_at` None: it is still running."""

    number: int
    verb: str
    label: str
    model: str
    state: str
    actor: str
    reason: str
    started_at: float
    finished_at: float | None

"""What a continuous-batching scheduler works on: its limits, requests, steps, and what happens to its prefix cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

State = Literal["waiting", "loading", "running", "held", "finished"]


@dataclass(frozen=True)
class Limits:
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step while others are there, too; 0: no such limit."""
    chunked_prefill: bool = True
    """Whether a prompt may be computed in several steps; if not, it waits for a step that holds it whole."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be at least 0, got {self.long_prefill_token_threshold}")


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. `keys`: chained hashes of its full blocks; the owner appends one whenever generated tokens fill a block
    (missing ones only cost hits). `remote`: the prompt's KV comes from a peer. `computed`: tokens whose KV is here."""

    id: int
    prompt_tokens: int
    keys: list[int] = field(default_factory=list)
    remote: bool = False
    state: State = "waiting"
    generated: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    local_hit_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    external_tokens: int = 0
    """Prompt tokens that the peer sends."""
    remembered: int = 0
    """Leading blocks that the prefix cache knows."""
    preemptions: int = 0
    admitted: bool = False
    lease_until: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated


class Work(NamedTuple):
    """`tokens` new tokens of a request in one step, after `past` that are there already."""

    request: Request
    tokens: int
    past: int


class Step(NamedTuple):
    """What to run next, and what changed to make room for it. `work` may be empty when only loads start."""

    work: tuple[Work, ...]
    admitted: tuple[Request, ...] = ()
    """Waiting requests that start now, for the first time or after a preemption."""
    loads: tuple[Request, ...] = ()
    """Requests whose blocks wait for `external_tokens` from the peer: answer with `loaded` or `abort`."""
    preempted: tuple[Request, ...] = ()

    @property
    def new_tokens(self) -> int:
        return sum(work.tokens for work in self.work)

    def prefills(self) -> list[tuple[int, int]]:
        """(new tokens, tokens before them) of each prompt chunk, as core.perf takes them."""
        return [(work.tokens, work.past) for work in self.work if work.tokens > 1]

    def decodes(self) -> tuple[int, int]:
        """Number of sequences that compute a single token, and the sum of their contexts."""
        contexts = [work.past + 1 for work in self.work if work.tokens == 1]
        return len(contexts), sum(contexts)


class Stored(NamedTuple):
    """Blocks `first` up to (not including) `last` of a request are full and in the prefix cache now."""

    request: Request
    first: int
    last: int


class Removed(NamedTuple):
    """One block with this key is not in the prefix cache any more."""

    key: int


class Cleared(NamedTuple):
    """The prefix cache is empty now."""


Change = Stored | Removed | Cleared

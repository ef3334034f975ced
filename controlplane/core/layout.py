"""Which engines serve a model: pools of equal engines, written `agg:8xTP4` or `disagg:12xTP2@h100-sxm+2xTP4@h200-sxm`. Pure.

`agg` has pools that serve whole requests: one, or several of different hardware (`agg:8xTP4@h100-sxm+2xTP4@h200-sxm`).
`disagg` has two: prefill first, decode second; `cond` has the same two and decides per request. `NxTPk` is N engines of k
GPUs each, `@kind` their kind of GPU (core/gpus.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.core.gpus import GPUS
from controlplane.core.protocol import Mode, Role

MAX_ENGINES = 4096
"""Of one pool. Larger numbers are taken for a slip of the hand; they would also take long to simulate."""
MAX_TENSOR_PARALLEL = 64
MAX_CHARS = 200

MODE_OF_WORD: Mapping[str, Mode] = {"agg": "monolithic", "disagg": "disaggregated", "cond": "conditional"}
WORD_OF_MODE: Mapping[Mode, str] = {mode: word for word, mode in MODE_OF_WORD.items()}
MIXED_ROLES: tuple[Role, ...] = ("mixed", "mixed", "mixed", "mixed")
SPLIT_ROLES: tuple[Role, ...] = ("prefill", "decode")
"""The pools of a split, in the order they are written."""

EXAMPLES = "agg:8xTP4 or disagg:12xTP2@h100-sxm+2xTP4@h200-sxm"


class LayoutRefused(ValueError):
    """A layout cannot be read. `position` counts characters from 1 and points at what is wrong."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"layout {text[:MAX_CHARS]!r}, character {position}: {problem} (e.g. {EXAMPLES})")
        self.position = position
        self.problem = problem


@dataclass(frozen=True)
class PoolLayout:
    """`engines` equal engines on `tensor_parallel` GPUs of one kind each. Raises ValueError for counts below 1."""

    role: Role
    engines: int
    tensor_parallel: int
    gpu: str

    def __post_init__(self) -> None:
        if self.engines < 1 or self.tensor_parallel < 1:
            raise ValueError(
                f"a pool needs at least one engine of one GPU, got {self.engines} engines of {self.tensor_parallel}"
            )

    @property
    def gpus(self) -> int:
        return self.engines * self.tensor_parallel

    @property
    def text(self) -> str:
        return f"{self.engines}xTP{self.tensor_parallel}@{self.gpu}"


@dataclass(frozen=True)
class Layout:
    """The pools of one model under one mode. Raises ValueError for pools that the mode does not have."""

    mode: Mode
    pools: tuple[PoolLayout, ...]

    def __post_init__(self) -> None:
        roles = tuple(pool.role for pool in self.pools)
        if self.mode == "monolithic":
            if set(roles) != {"mixed"} or len(roles) > len(MIXED_ROLES):
                raise ValueError(
                    f"mode monolithic has 1 to {len(MIXED_ROLES)} mixed pools, got {', '.join(roles) or 'none'}"
                )
        elif roles != SPLIT_ROLES:
            raise ValueError(f"mode {self.mode} has the pools {', '.join(SPLIT_ROLES)}, got {', '.join(roles) or 'none'}")

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    @property
    def gpus_by_kind(self) -> dict[str, int]:
        """GPUs per kind, in the order of the pools."""
        counts: dict[str, int] = {}
        for pool in self.pools:
            counts[pool.gpu] = counts.get(pool.gpu, 0) + pool.gpus
        return counts

    @property
    def text(self) -> str:
        """The layout as `parse_layout` reads it, every kind named."""
        return f"{WORD_OF_MODE[self.mode]}:{'+'.join(pool.text for pool in self.pools)}"


def monolithic(engines: int, tensor_parallel: int, gpu: str) -> Layout:
    return Layout("monolithic", (PoolLayout("mixed", engines, tensor_parallel, gpu),))


def split(prefill: tuple[int, int, str], decode: tuple[int, int, str], mode: Mode = "disaggregated") -> Layout:
    """A layout of two pools, each (engines, tensor-parallel degree, GPU kind)."""
    return Layout(mode, (PoolLayout("prefill", *prefill), PoolLayout("decode", *decode)))


_POOL = re.compile(r"(?P<engines>\d+)(?P<x>[xX×])(?P<tp>[tT][pP])(?P<degree>\d+)(?P<at>@(?P<gpu>[A-Za-z0-9.-]*))?", re.ASCII)
_STEPS = (
    (re.compile(r"\d+", re.ASCII), "expected the number of engines"),
    (re.compile(r"[xX×]"), "expected 'x' after the number of engines"),
    (re.compile(r"[tT][pP]"), "expected 'TP' and the tensor-parallel degree"),
    (re.compile(r"\d+", re.ASCII), "expected the tensor-parallel degree"),
)
"""The same as _POOL in pieces, to say which one is missing."""


def parse_layout(text: str, default_gpu: str, kinds: Collection[str] = GPUS) -> Layout:
    """Read a layout of GPUs of these kinds; pools without `@kind` get `default_gpu`. Raises LayoutRefused, which names the
    position."""
    if len(text) > MAX_CHARS:
        raise LayoutRefused(text, MAX_CHARS, "is longer than any layout")
    word, colon, _ = text.partition(":")
    mode = MODE_OF_WORD.get(word.strip().lower())
    if not colon or mode is None:
        raise LayoutRefused(text, 1, f"must start with one of {', '.join(f'{each}:' for each in MODE_OF_WORD)}")
    roles = MIXED_ROLES if mode == "monolithic" else SPLIT_ROLES
    needed = 1 if mode == "monolithic" else len(SPLIT_ROLES)
    pools: list[PoolLayout] = []
    at = len(word) + 1
    for role in roles:
        if pools:
            if at == len(text) and len(pools) >= needed:
                break
            if text[at : at + 1] != "+":
                wanted = f"'+' and the {role} pool" if len(pools) < needed else "'+' and another pool, or the end"
                raise LayoutRefused(text, at + 1, f"expected {wanted}")
            at += 1
        pool, at = _pool(text, at, role, default_gpu, kinds)
        pools.append(pool)
    if at != len(text):
        raise LayoutRefused(text, at + 1, f"expected the end after {len(pools)} pools")
    return Layout(mode, tuple(pools))


def _pool(text: str, start: int, role: Role, default_gpu: str, kinds: Collection[str]) -> tuple[PoolLayout, int]:
    """The pool that is written at `start`, and where it ends."""
    found = _POOL.match(text, start)
    if not found:
        raise _missing_piece(text, start, role)
    engines = _number(text, found.start("engines"), found["engines"], MAX_ENGINES, f"{role} engines")
    degree = _number(text, found.start("degree"), found["degree"], MAX_TENSOR_PARALLEL, "GPUs per engine (TP)")
    kind, where = default_gpu, start
    if found["at"] is not None:
        kind, where = found["gpu"].lower(), found.start("gpu")
    if kind not in kinds:
        raise LayoutRefused(text, where + 1, f"GPU kind {kind[:60]!r} is not known (known: {', '.join(kinds)})")
    return PoolLayout(role, engines, degree, kind), found.end()


def _number(text: str, start: int, digits: str, most: int, what: str) -> int:
    if len(digits) > 9 or not 1 <= int(digits) <= most:
        raise LayoutRefused(text, start + 1, f"{what} must be 1 to {most:,}, got {digits[:20]}")
    return int(digits)


def _missing_piece(text: str, at: int, role: Role) -> LayoutRefused:
    """What a pool that starts at `at` lacks first."""
    for pattern, problem in _STEPS:
        found = pattern.match(text, at)
        if not found:
            return LayoutRefused(text, at + 1, f"{problem} of the {role} pool")
        at = found.end()
    return LayoutRefused(text, at + 1, f"the {role} pool cannot be read")

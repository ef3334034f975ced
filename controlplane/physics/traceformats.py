"""How one row of each kind of trace is read. Strict: what is not exactly a row of its kind raises BadRow with the reason.

Arrival times are as the file has them (seconds from whatever it counts from); traces.py makes them relative and bounds the
whole.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, Protocol

from controlplane.core.forecast import Arrival

Kind = Literal["azure", "mooncake", "twinpool"]

MAX_TOKENS = 2_000_000
"""Of one prompt or answer. More is taken for a broken row."""
MAX_TIME_S = 1e11
BLOCK_TOKENS = 512
"""Of one prefix block, in Mooncake's traces and where a row of our own does not say."""
MAX_BLOCK_TOKENS = 1 << 16

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_WHOLE = re.compile(r"\s*\d{1,12}\s*", re.ASCII)


class BadRow(ValueError):
    """What is wrong with a row; its line number is not known here."""


class Rows(Protocol):
    """The rows of one file. `block_tokens` is known once a row with a prefix was read."""

    kind: Kind
    first_line_is_header: bool
    block_tokens: int

    def read(self, line: str) -> Arrival: ...


def rows_of(first_line: str) -> Rows:
    """The reader for a file that starts with this line. Raises BadRow if it is none of the three kinds."""
    if first_line.lstrip().startswith("{"):
        row = _json_row(first_line)
        if "at_s" in row:
            return OwnRows()
        if "timestamp" in row:
            return MooncakeRows()
        raise BadRow("a JSON row needs `at_s` (Twinpool's own) or `timestamp` (Mooncake's)")
    return AzureRows(first_line)


class AzureRows:
    """`TIMESTAMP,ContextTokens,GeneratedTokens` with a header; other columns are left alone, the order is the header's."""

    kind: Kind = "azure"
    first_line_is_header = True
    block_tokens = 0

    def __init__(self, header: str) -> None:
        names = [name.strip() for name in _cells(header)]
        missing = [name for name in AZURE_COLUMNS if name not in names]
        if len(missing) == len(AZURE_COLUMNS):
            raise BadRow(f"is neither a JSON row nor the header {','.join(AZURE_COLUMNS)}")
        if missing:
            raise BadRow(f"the header has no column {', '.join(missing)} (it has {', '.join(names):.200})")
        self.columns = len(names)
        self.time, self.prompt, self.output = (names.index(name) for name in AZURE_COLUMNS)

    def read(self, line: str) -> Arrival:
        cells = _cells(line)
        if len(cells) != self.columns:
            raise BadRow(f"has {len(cells)} columns, the header {self.columns}")
        return Arrival(
            _clock(cells[self.time]),
            _tokens(_whole(cells[self.prompt], "ContextTokens"), "ContextTokens"),
            _tokens(_whole(cells[self.output], "GeneratedTokens"), "GeneratedTokens"),
        )


class MooncakeRows:
    """`{"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": […]}`, one id per block of 512 tokens.

    An id stands for its block and all before it. The last id may cover less than a block; it is dropped, as an engine's
    prefix cache keeps whole blocks only.
    """

    kind: Kind = "mooncake"
    first_line_is_header = False
    block_tokens = BLOCK_TOKENS

    def read(self, line: str) -> Arrival:
        row = _json_row(line)
        prompt = _tokens(_field(row, "input_length"), "input_length")
        output = _tokens(_field(row, "output_length"), "output_length")
        ids = _ids(row.get("hash_ids", []), "hash_ids")
        if len(ids) > -(-prompt // BLOCK_TOKENS):
            raise BadRow(f"hash_ids has {len(ids)} blocks of {BLOCK_TOKENS} tokens, more than {prompt} tokens fill")
        return Arrival(_time(_field(row, "timestamp"), "timestamp") / 1000, prompt, output, ids[: prompt // BLOCK_TOKENS])


class OwnRows:
    """`{"at_s": …, "prompt_tokens": …, "output_tokens": …}`, optionally with `prefix` (an id per leading whole block, each
    for its block and all before it), `block_tokens` (512 unless given, the same in the whole file) and `session`."""

    kind: Kind = "twinpool"
    first_line_is_header = False

    def __init__(self) -> None:
        self.block_tokens = 0
        self._sessions: dict[str, int] = {}

    def read(self, line: str) -> Arrival:
        row = _json_row(line)
        prompt = _tokens(_field(row, "prompt_tokens"), "prompt_tokens")
        output = _tokens(_field(row, "output_tokens"), "output_tokens")
        prefix = _ids(row.get("prefix", []), "prefix")
        if prefix:
            self._block(row.get("block_tokens", BLOCK_TOKENS), len(prefix), prompt)
        return Arrival(_time(_field(row, "at_s"), "at_s"), prompt, output, prefix, self._session(row.get("session")))

    def _block(self, block: object, ids: int, prompt: int) -> None:
        if isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= MAX_BLOCK_TOKENS:
            raise BadRow(f"block_tokens must be a whole number from 1 to {MAX_BLOCK_TOKENS:,}, got {block!r:.40}")
        if self.block_tokens not in (0, block):
            raise BadRow(f"block_tokens is {block}, but {self.block_tokens} above; a file has one block size")
        if ids > prompt // block:
            raise BadRow(f"prefix has {ids} blocks of {block} tokens, more than {prompt} tokens fill")
        self.block_tokens = block

    def _session(self, name: object) -> int:
        """Sessions become numbers in the order they appear; 0 is a request without one."""
        if name is None:
            return 0
        if isinstance(name, bool) or not isinstance(name, str | int) or len(str(name)) > 200:
            raise BadRow("session must be a short text or a whole number")
        return self._sessions.setdefault(str(name), len(self._sessions) + 1)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise BadRow(f"is no CSV row: {error}") from None


def _json_row(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except BadRow:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRow(f"is not JSON: {error!s:.200}") from None
    if not isinstance(row, dict):
        raise BadRow(f"must be a JSON object, got {type(row).__name__}")
    return row


def _no_constant(name: str) -> NoReturn:
    raise BadRow(f"{name} is not a number that can be used")


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise BadRow(f"{name} is missing")
    return row[name]


def _whole(text: str, name: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise BadRow(f"{name} must be a whole number, got {text!r:.60}")
    return int(text)


def _tokens(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRow(f"{name} must be a whole number, got {value!r:.60}")
    if not 1 <= value <= MAX_TOKENS:
        raise BadRow(f"{name} must be 1 to {MAX_TOKENS:,} tokens, got {value!r:.30}")
    return value


def _time(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(f"{name} must be a number, got {value!r:.60}")
    if not 0 <= value <= MAX_TIME_S or not math.isfinite(value):
        raise BadRow(f"{name} must be from 0 to {MAX_TIME_S:g}, got {value!r:.30}")
    return float(value)


def _ids(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 1 << 64 for each in value):
        raise BadRow(f"{name} must be a list of whole numbers, got {value!r:.60}")
    return tuple(value)


def _clock(text: str) -> float:
    """Seconds of a point in time as `2023-11-16 18:17:03.9799600`, to the microsecond; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadRow(f"TIMESTAMP must look like 2023-11-16 18:17:03.9799600, got {text!r:.60}") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - _EPOCH).total_seconds()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

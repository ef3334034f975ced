"""Recorded traffic from files: Azure's LLM inference CSV, Mooncake's JSONL, and Twinpool's own JSONL.

The kind is recognised by the first line. A file is read line by line and only as far as needed; the first bad row ends the
reading with TraceRefused, which names the line. How each format is written: docs/forecast.md.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from controlplane.common.files import open_document
from controlplane.core.forecast import Arrival
from controlplane.physics.traceformats import BadRow, Kind, Rows, rows_of

MAX_LINE_BYTES = 1 << 20
MAX_REQUESTS = 100_000
MAX_BLOCKS = 5_000_000
"""Prefix ids of all requests together: about 300 MB of memory."""
_GZIP = b"\x1f\x8b"


class TraceRefused(ValueError):
    """A trace cannot be used. The message names the line (from 1), if it is about one, and what to do."""


@dataclass(frozen=True)
class Trace:
    kind: Kind
    arrivals: tuple[Arrival, ...]
    block_tokens: int
    """Tokens of one block of `Arrival.prefix`; 0 if the trace has no prefixes."""


def read_trace(path: Path, limit: int | None = None, seconds: float | None = None, scale_rate: float = 1.0) -> Trace:
    """Requests of a trace file in the order of time, the first at 0 s.

    `scale_rate`: how many times faster than recorded they arrive; `seconds`: only those that then arrive before that time;
    `limit`: only that many. Raises TraceRefused for a file that cannot be read, a bad row, too many requests, or none.
    """
    try:
        with open_document(path) as file:
            return _read(file, limit, seconds, scale_rate)
    except OSError as error:
        raise TraceRefused(f"cannot read it: {error.strerror}") from None


def trace_of(text: str, limit: int | None = None) -> Trace:
    """The same of a trace that came as text. Raises TraceRefused."""
    return _read(io.BytesIO(text.encode()), limit, None, 1.0)


def _read(file: BinaryIO, limit: int | None, seconds: float | None, scale_rate: float) -> Trace:
    lines = _lines(file)
    number, first = next(lines, (0, ""))
    if not number:
        raise TraceRefused("it is empty; a trace needs at least one request")
    try:
        rows = rows_of(first)
    except BadRow as bad:
        raise TraceRefused(f"line {number}: {bad}") from None
    if not rows.first_line_is_header:
        lines = _again(number, first, lines)
    arrivals = tuple(islice(_arrivals(rows, lines, seconds, scale_rate), limit))
    if not arrivals:
        raise TraceRefused("it has no requests, only a header; a trace needs at least one")
    return Trace(rows.kind, arrivals, rows.block_tokens)


def _arrivals(rows: Rows, lines: Iterator[tuple[int, str]], seconds: float | None, scale_rate: float) -> Iterator[Arrival]:
    first_s: float | None = None
    last_s = 0.0
    count = blocks = 0
    for number, line in lines:
        try:
            arrival = rows.read(line)
        except BadRow as bad:
            raise TraceRefused(f"line {number}: {bad}") from None
        if first_s is None:
            first_s = last_s = arrival.at_s
        if arrival.at_s < last_s:
            raise TraceRefused(
                f"line {number}: it is {last_s - arrival.at_s:.6f} s before the row above; sort the file by time"
            )
        last_s = arrival.at_s
        at_s = (last_s - first_s) / scale_rate
        if seconds is not None and at_s >= seconds:
            return
        count, blocks = count + 1, blocks + len(arrival.prefix)
        if count > MAX_REQUESTS or blocks > MAX_BLOCKS:
            raise TraceRefused(
                f"line {number}: more than {MAX_REQUESTS:,} requests or {MAX_BLOCKS:,} prefix blocks; "
                f"use fewer with --limit or --seconds"
            )
        yield arrival._replace(at_s=at_s)


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1, without line ends and byte-order mark."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise TraceRefused(f"line {number}: longer than {MAX_LINE_BYTES:,} bytes; is this a trace?")
        if number == 1 and raw.startswith(_GZIP):
            raise TraceRefused("it is compressed; unpack it first (gunzip)")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TraceRefused(f"line {number}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
        if line.strip():
            yield number, line.rstrip("\r\n")


def _again(number: int, first: str, rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield number, first
    yield from rest

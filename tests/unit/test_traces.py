"""Traces of three kinds are recognised and read; a bad row is named by its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.forecast import Arrival
from controlplane.physics import traces
from controlplane.physics.traces import TraceRefused, read_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def written(tmp_path: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    path = tmp_path / "trace"
    path.write_bytes(end.join(line.encode() if isinstance(line, str) else line for line in lines) + end)
    return path


def own(**changes: Any) -> str:
    return json.dumps({"at_s": 1.5, "prompt_tokens": 600, "output_tokens": 20} | changes)


def mooncake(**changes: Any) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [1, 2]} | changes)


def test_azure_times_keep_their_fractions_and_start_at_zero() -> None:
    trace = read_trace(DATA / "azure2023_conv.csv")
    assert (trace.kind, len(trace.arrivals), trace.block_tokens) == ("azure", 200, 0)
    assert trace.arrivals[0][:3] == (0.0, 374, 44)
    assert trace.arrivals[1].at_s == pytest.approx(4.314579, abs=1e-6)
    assert trace.arrivals[1][1:3] == (396, 109)


def test_mooncake_blocks_become_prefixes_without_the_last_part_block() -> None:
    trace = read_trace(DATA / "mooncake_conversation.jsonl")
    assert (trace.kind, len(trace.arrivals), trace.block_tokens) == ("mooncake", 150, 512)
    first = trace.arrivals[0]
    assert first[:3] == (0.0, 6758, 500)
    assert first.prefix == tuple(range(13)), "6,758 tokens fill 13 blocks; the id of the 14th is dropped"
    assert trace.arrivals[-1].at_s == 54.0


def test_our_own_rows_carry_blocks_and_sessions() -> None:
    trace = read_trace(DATA / "twinpool.jsonl")
    assert (trace.kind, len(trace.arrivals), trace.block_tokens) == ("twinpool", 60, 256)
    assert trace.arrivals[0].at_s == 0.0
    assert len({arrival.session for arrival in trace.arrivals}) == 10
    assert all(len(arrival.prefix) <= arrival.prompt_tokens // 256 for arrival in trace.arrivals)


def test_our_own_rows_need_neither_blocks_nor_sessions(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, own(), own(at_s=2, comment="more fields are left alone")))
    assert trace.arrivals == (Arrival(0.0, 600, 20), Arrival(0.5, 600, 20))
    assert trace.block_tokens == 0


def test_byte_order_mark_crlf_blank_lines_and_other_columns_are_accepted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        b"\xef\xbb\xbfGeneratedTokens,TIMESTAMP,Model,ContextTokens",
        '5,2024-05-10 00:00:00.009930+00:00,"a,b",7',
        "",
        "6,2024-05-10T00:00:01.009930Z,x, 8 ",
        end=b"\r\n",
    )
    assert read_trace(path).arrivals == (Arrival(0.0, 7, 5), Arrival(1.0, 8, 6))


def test_a_trace_can_be_cut_and_hastened() -> None:
    path = DATA / "mooncake_conversation.jsonl"
    assert len(read_trace(path, limit=7).arrivals) == 7
    fast = read_trace(path, scale_rate=2.0)
    assert fast.arrivals[-1].at_s == 27.0
    cut = read_trace(path, seconds=10.0)
    assert 0 < len(cut.arrivals) < 150
    assert cut.arrivals[-1].at_s < 10
    assert len(read_trace(path, seconds=10.0, scale_rate=2.0).arrivals) > len(cut.arrivals)


def test_a_row_beyond_the_limit_is_never_read(tmp_path: Path) -> None:
    path = written(tmp_path, own(), own(), "broken")
    assert len(read_trace(path, limit=2).arrivals) == 2


AZURE_ROWS = [
    ("2023-11-16 18:17:03.9799600,10", "has 2 columns, the header 3"),
    ("2023-11-16 18:17:03.9799600,10,5,1", "has 4 columns, the header 3"),
    ("2023-11-16 18:17:03.9799600,ten,5", "ContextTokens must be a whole number, got 'ten'"),
    ("2023-11-16 18:17:03.9799600,1.5,5", "ContextTokens must be a whole number"),
    ("2023-11-16 18:17:03.9799600,nan,5", "ContextTokens must be a whole number"),
    ("2023-11-16 18:17:03.9799600,1_0,5", "ContextTokens must be a whole number"),
    ("2023-11-16 18:17:03.9799600,٣,5", "ContextTokens must be a whole number"),
    ("2023-11-16 18:17:03.9799600,10,-5", "GeneratedTokens must be a whole number, got '-5'"),
    ("2023-11-16 18:17:03.9799600,0,5", "ContextTokens must be 1 to 2,000,000 tokens, got 0"),
    ("2023-11-16 18:17:03.9799600,10,0", "GeneratedTokens must be 1 to"),
    ("2023-11-16 18:17:03.9799600,999999999,5", "ContextTokens must be 1 to"),
    ("2023-11-16 18:17:03.9799600," + "9" * 5000 + ",5", "ContextTokens must be a whole number"),
    ("yesterday,10,5", "TIMESTAMP must look like"),
    (",10,5", "TIMESTAMP must look like"),
    ("2023-11-16 18:17:02.9799600,10,5", "1.000000 s before the row above; sort the file by time"),
    ('"2023-11-16,10,5', "is no CSV row"),
    (b"2023-11-16 18:17:03,1\xff,5", "byte 22 is not UTF-8"),
    (b"x" * (traces.MAX_LINE_BYTES + 1), "longer than 1,048,576 bytes"),
]


@pytest.mark.parametrize(("row", "problem"), AZURE_ROWS, ids=[problem for _, problem in AZURE_ROWS])
def test_a_bad_azure_row_is_named_by_its_line(tmp_path: Path, row: str | bytes, problem: str) -> None:
    path = written(tmp_path, HEADER, "2023-11-16 18:17:03.9799600,10,5", row)
    with pytest.raises(TraceRefused) as refused:
        read_trace(path)
    assert str(refused.value).startswith("line 3: ")
    assert problem in str(refused.value)
    assert len(str(refused.value)) < 300


JSON_ROWS = [
    (own(at_s=0.5), "before the row above"),
    (own(prompt_tokens=0), "prompt_tokens must be 1 to 2,000,000 tokens, got 0"),
    (own(prompt_tokens=-3), "prompt_tokens must be 1 to"),
    (own(prompt_tokens=1.5), "prompt_tokens must be a whole number, got 1.5"),
    (own(prompt_tokens="12"), "prompt_tokens must be a whole number, got '12'"),
    (own(prompt_tokens=True), "prompt_tokens must be a whole number, got True"),
    (own(output_tokens=None), "output_tokens must be a whole number, got None"),
    ('{"at_s": 2, "prompt_tokens": 3}', "output_tokens is missing"),
    (own(at_s=float("nan")), "NaN is not a number"),
    (own(at_s=float("inf")), "Infinity is not a number"),
    (own().replace("1.5", "1e999"), "at_s must be from 0 to 1e+11, got inf"),
    (own(at_s=-1), "at_s must be from 0 to"),
    (own(at_s="2"), "at_s must be a number"),
    (own(at_s=10**400), "at_s must be from 0 to"),
    (own(at_s=2).replace("600", "9" * 5000), "is not JSON"),
    (own(prefix="abc"), "prefix must be a list of whole numbers"),
    (own(prefix=[1, -2]), "prefix must be a list of whole numbers"),
    (own(prefix=[1, 2.5]), "prefix must be a list of whole numbers"),
    (own(prefix=[1, 2]), "prefix has 2 blocks of 512 tokens, more than 600 tokens fill"),
    (own(prefix=[1], block_tokens=0), "block_tokens must be a whole number from 1"),
    (own(session=[1]), "session must be"),
    ("[1, 2]", "must be a JSON object, got list"),
    ("[" * 100_000, "is not JSON"),
    ("{", "is not JSON"),
]


@pytest.mark.parametrize(("row", "problem"), JSON_ROWS, ids=[problem for _, problem in JSON_ROWS])
def test_a_bad_row_of_our_own_is_named_by_its_line(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(TraceRefused) as refused:
        read_trace(written(tmp_path, own(), row))
    assert str(refused.value).startswith("line 2: ")
    assert problem in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (mooncake(hash_ids=[1, 2, 3]), "hash_ids has 3 blocks of 512 tokens, more than 600 tokens fill"),
        (mooncake(input_length=0), "input_length must be 1 to"),
        (mooncake(timestamp=float("nan")), "NaN is not a number"),
        ('{"timestamp": 1, "input_length": 5}', "output_length is missing"),
    ],
)
def test_a_bad_mooncake_row_is_named_by_its_line(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(TraceRefused, match="line 3: ") as refused:
        read_trace(written(tmp_path, mooncake(), "", row))
    assert problem in str(refused.value)


def test_one_file_has_one_block_size(tmp_path: Path) -> None:
    path = written(tmp_path, own(prefix=[1]), own(prefix=[1, 2], block_tokens=256))
    with pytest.raises(TraceRefused, match="line 2: block_tokens is 256, but 512 above"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"\n\r\n  \n", "it is empty"),
        (HEADER.encode(), "no requests, only a header"),
        (b"TIMESTAMP,ContextTokens\n", "line 1: the header has no column GeneratedTokens"),
        (b"hello\n", "line 1: is neither a JSON row nor the header"),
        (b'{"a": 1}\n', "line 1: a JSON row needs `at_s`"),
        (b"{oops\n", "line 1: is not JSON"),
        (HEADER.encode("utf-16"), "line 1: byte 1 is not UTF-8"),
        (b"\x00" * 50, "line 1: is neither"),
        (gzip.compress(HEADER.encode()), "it is compressed; unpack it first"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceRefused) as refused:
        read_trace(path)
    assert problem in str(refused.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceRefused, match="No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(TraceRefused, match="Is a directory"):
        read_trace(tmp_path)


def test_more_requests_than_can_be_simulated_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_REQUESTS", 3)
    path = written(tmp_path, *[own()] * 5)
    with pytest.raises(TraceRefused, match=r"line 4: more than 3 requests .* --limit"):
        read_trace(path)
    assert len(read_trace(path, limit=3).arrivals) == 3


@given(st.binary(max_size=300))
def test_no_bytes_end_in_anything_but_a_trace_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    try:
        assert read_trace(path).arrivals
    except TraceRefused as refused:
        assert str(refused)

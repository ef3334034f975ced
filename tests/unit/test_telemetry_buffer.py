"""Between who follows the stream and who stores it: nothing is handed over twice or left out, and little is kept."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol import NodeRow
from controlplane.telemetry import buffer as buffer_module
from controlplane.telemetry.buffer import Buffer
from controlplane.telemetry.records import Sample


def sample(number: int) -> Sample[Any]:
    return Sample(f"{number}-0", float(number), float(number), "agent:n1", "node", (NodeRow("n1"),))


def put(buffer: Buffer, *numbers: int) -> None:
    buffer.put([sample(number) for number in numbers], f"{numbers[-1]}-0", float(numbers[-1]))


def joined() -> Buffer:
    buffer = Buffer()
    put(buffer, 0)
    assert buffer.rejoin("0-0") == "0-0"
    return buffer


def positions(buffer: Buffer) -> list[str] | None:
    share = buffer.take()
    return None if share is None else [each.position for each in share.samples]


def test_who_stores_reads_the_stream_up_to_where_the_samples_begin() -> None:
    buffer = Buffer()
    put(buffer, 1, 2)
    assert positions(buffer) is None
    assert buffer.rejoin("1-0") == "2-0"
    put(buffer, 3, 4)
    share = buffer.take()
    assert share is not None
    assert [each.position for each in share.samples] == ["3-0", "4-0"]
    assert (share.position, share.watermark) == ("4-0", 4.0)
    assert positions(buffer) == []


def test_what_nobody_takes_does_not_pile_up_and_is_read_from_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "LIMIT_ROWS", 3)
    buffer = joined()
    put(buffer, 1, 2, 3)
    put(buffer, 4)
    assert positions(buffer) is None
    put(buffer, 5)
    assert positions(buffer) is None
    assert buffer.rejoin("3-0") == "5-0"
    put(buffer, 6)
    assert positions(buffer) == ["6-0"]


def test_who_lost_its_place_gets_nothing_until_it_has_read_the_stream() -> None:
    buffer = joined()
    put(buffer, 1)
    buffer.leave()
    put(buffer, 2)
    assert positions(buffer) is None


def test_what_was_stored_already_is_not_handed_over_when_the_follower_reads_it_later() -> None:
    buffer = Buffer()
    assert buffer.rejoin("7-0") is None
    put(buffer, 1, 2)
    assert (buffer.rejoin("7-0"), positions(buffer)) == (None, None)
    put(buffer, 3, 7)
    assert buffer.rejoin("7-0") == "7-0"
    put(buffer, 8)
    assert positions(buffer) == ["8-0"]

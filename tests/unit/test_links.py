"""Transfers on a shared link."""

from __future__ import annotations

import pytest

from controlplane.core.links import SharedLink

GB100 = 100e9 / 8


def test_4096_tokens_of_llama_70b_take_107_ms_at_100_gbps() -> None:
    link = SharedLink(GB100)
    link.start(0.0, "a", 4096 * 327_680)
    assert link.next_end() == (pytest.approx(0.10737, abs=1e-5), "a")


def test_two_transfers_halve_each_other() -> None:
    link = SharedLink(10.0)
    link.start(0.0, "a", 100)
    link.start(5.0, "b", 100)
    assert link.next_end() == (15.0, "a")
    link.stop(15.0, "a")
    assert link.next_end() == (20.0, "b")


def test_the_slower_end_decides() -> None:
    link = SharedLink(10.0)
    link.start(0.0, "a", 100, limit=2.0)
    assert link.next_end() == (50.0, "a")
    link.limit(10.0, "a", 8.0)
    assert link.next_end() == (20.0, "a")


def test_an_abandoned_transfer_leaves_its_share_to_others() -> None:
    link = SharedLink(10.0)
    link.start(0.0, "a", 100)
    link.start(0.0, "b", 100)
    link.stop(10.0, "a")
    link.stop(10.0, "never started")
    link.limit(10.0, "never started", 1.0)
    assert link.next_end() == (15.0, "b")
    link.stop(15.0, "b")
    assert link.next_end() is None


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match="positive bandwidth"):
        SharedLink(0)

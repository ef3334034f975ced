"""Faults as they are asked for: what is refused, how often they strike, when they are over."""

from __future__ import annotations

from typing import Any

import pytest

from workers.engines.simulated.faults import KINDS, Faults, FaultsRefused, read


def active(now: float = 0.0, **wanted: Any) -> Faults:
    faults = Faults()
    faults.set(read(wanted), now)
    return faults


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"slow": 3}, {"slow": {"factor": 3.0}}),
        ({"status": 503}, {"status": {"code": 503}}),
        ({"transfer": "fail"}, {"transfer": {"mode": "fail"}}),
        ({"leak_blocks": 7}, {"leak_blocks": {"blocks": 7}}),
        ({"expire_early": 0}, {"expire_early": {"lease_s": 0.0}}),
        ({"hang": "process"}, {"hang": {"what": "process"}}),
        ({"refuse": 0.5}, {"refuse": {"share": 0.5}}),
        ({"die": True, "stale_metrics": True}, {"die": {}, "stale_metrics": {}}),
        ({"restart": 1.5}, {"restart": {"down_s": 1.5}}),
    ],
)
def test_a_bare_value_means_the_main_field(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert read(short) == long == read(long)


@pytest.mark.parametrize(
    ("wanted", "field", "problem"),
    [
        ([], "(body)", "object of faults"),
        ({}, "(body)", "object of faults"),
        ({"explode": True}, "explode", "no fault; faults: die, expire_early"),
        ({"slow": True}, "slow.factor", "missing"),
        ({"slow": 0}, "slow.factor", "from 0.01"),
        ({"slow": float("nan")}, "slow.factor", "from 0.01"),
        ({"slow": False}, "slow.factor", "from 0.01"),
        ({"status": 200}, "status.code", "from 400 to 599"),
        ({"status": {"code": 503, "share": 2}}, "status.share", "from 0.0 to 1.0"),
        ({"status": {"code": 503, "count": 0}}, "status.count", "from 1"),
        ({"status": {"code": 503, "count": 1.5}}, "status.count", "whole number"),
        ({"transfer": "lose"}, "transfer.mode", "one of fail, delay, corrupt"),
        ({"transfer": "delay"}, "transfer.delay_s", "missing"),
        ({"forget_cache": 5}, "forget_cache", "must be true"),
        ({"stale_metrics": None}, "stale_metrics", "must be true"),
        ({"leak_blocks": -1}, "leak_blocks.blocks", "from 1"),
        ({"hang": {"duration_s": -1}}, "hang.duration_s", "from 0.001"),
        ({"die": {"when": 1}}, "die.when", "no field of this fault; fields: after_s"),
        ({"forget_cache": {"x": 1}}, "forget_cache.x", "fields: none"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(wanted: Any, field: str, problem: str) -> None:
    with pytest.raises(FaultsRefused) as refusal:
        read(wanted)
    (found,) = refusal.value.problems
    assert found.field == field
    assert problem in found.text


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(FaultsRefused) as refusal:
        read({"slow": -1, "status": {"code": 9, "share": "x"}, "refuse": True})
    assert [problem.field for problem in refusal.value.problems] == ["slow.factor", "status.code", "status.share"]


@pytest.mark.parametrize(("share", "of_ten"), [(1.0, 10), (0.5, 5), (0.3, 3), (0.1, 1), (0.0, 0)])
def test_a_share_strikes_exactly_that_often(share: float, of_ten: int) -> None:
    faults = active(status={"code": 500, "share": share})
    assert sum(faults.strike("status", 1.0) is not None for _ in range(10)) == of_ten
    assert faults.struck["status"] == of_ten


def test_a_count_ends_it() -> None:
    faults = active(transfer={"mode": "fail", "count": 2})
    assert faults.report(0.0) == {"transfer": {"mode": "fail", "count": 2, "hits": 0, "left": 2}}
    assert [faults.strike("transfer", 0.0) is not None for _ in range(3)] == [True, True, False]
    assert faults.report(0.0) == {} and not faults.any
    assert faults.struck["transfer"] == 2


def test_a_duration_ends_it() -> None:
    faults = active(10.0, slow={"factor": 2, "duration_s": 5})
    assert faults.report(12.0) == {"slow": {"factor": 2.0, "duration_s": 5.0, "hits": 0, "ends_in_s": 3.0}}
    assert faults.get("slow", 14.9) == {"factor": 2.0, "duration_s": 5.0}
    assert faults.get("slow", 15.0) is None
    assert not faults.any


def test_what_happens_at_once_is_counted_and_does_not_last() -> None:
    faults = active(forget_cache=True, leak_blocks=3)
    assert faults.report(0.0) == {"leak_blocks": {"blocks": 3, "hits": 0}}
    assert (faults.struck["forget_cache"], faults.struck["leak_blocks"]) == (1, 1)


def test_asking_again_replaces_and_clearing_ends() -> None:
    faults = active(slow=2, refuse=True, status=503)
    faults.set(read({"slow": 4}), 1.0)
    assert faults.get("slow", 1.0) == {"factor": 4.0}
    faults.clear("slow")
    assert sorted(faults.report(1.0)) == ["refuse", "status"]
    faults.clear()
    assert not faults.any


def test_every_fault_is_documented() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "simulated-engine.md").read_text()
    for name, kind in KINDS.items():
        assert f"`{name}`" in text
        assert all(f"`{field}`" in text for field in kind.fields)

"""The comparison of closed forms with the simulation, in small."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.gpus import gpu
from controlplane.core.perf import PhaseModel
from controlplane.physics.experiments.daytraffic import Hour
from controlplane.physics.experiments.splitrank import Setting, compared, drawn, summary
from controlplane.physics.workload import Distribution, draw
from tests.planner_kit import shape


def test_a_seed_gives_one_setting_or_none() -> None:
    hours = [Hour.of("documents", draw(Distribution(4500, 330, 1.0, 3600.0, 0.5), 3), 12_000)]
    seeds = range(20)
    seed, setting = next((seed, found) for seed in seeds if (found := drawn(seed, hours)))
    assert drawn(seed, hours) == setting
    assert 0 <= setting.arrivals[0].at_s <= setting.arrivals[-1].at_s <= setting.seconds


def test_every_split_is_told_three_ways() -> None:
    arrivals = tuple(draw(Distribution(2000, 60, 1.5, 300.0, 0.5), 3))
    row = compared(Setting(1, PhaseModel(shape(), gpu("l40s"), 8), 4, 300.0, arrivals, (5.0, 0.04)))
    assert [len(row[name]) for name in ("simulated", "backlog", "lasting")] == [3, 3, 3]
    assert all(0 <= share <= 1 for name in ("simulated", "backlog", "lasting") for share in row[name])
    figures = {"error": 0.0, "lost": 0.0, "most_lost": 0.0, "found": 1.0}
    assert "1 settings, 3 simulations" in summary({"settings": [row], "backlog": figures, "lasting": figures})


def test_the_comparison_refuses_in_one_line() -> None:
    with pytest.raises(CommandError, match="--count must be from 1 to"):
        call_command("experiment", "planner-splits", "--count", "0", stdout=StringIO())

"""The simulated day in small: an hour of virtual time of drawn traffic, under the real planner; and its commands."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.physics.experiments.daytraffic import Hour, at_curve, day
from controlplane.physics.experiments.plannerday import TRAFFIC, planner_day, summary
from controlplane.physics.workload import Distribution, draw


def hour(name: str, prompt: int, output: int, rate: float) -> Hour:
    return Hour.of(name, draw(Distribution(prompt, output, rate, 3600.0, 0.5), 7), 12_000)


def test_a_day_repeats_the_hours_under_their_curves() -> None:
    chat = hour("chat", 1000, 200, 0.5)
    arrivals = day([chat], {"chat": ((0, 0.5), (12, 1.5))})
    assert list(arrivals) == sorted(arrivals, key=lambda each: each.at_s)
    assert day([chat], {"chat": ((0, 0.5), (12, 1.5))}) == arrivals, "the same draw each time"
    by_hour = [sum(index * 3600 <= each.at_s < (index + 1) * 3600 for each in arrivals) for index in range(24)]
    assert by_hour[12] > 2 * by_hour[0]
    assert at_curve(((0, 0.5), (12, 1.5)))(6 * 3600.0) == pytest.approx(1.0)
    assert day([chat], {"chat": ((0, 0.5), (12, 1.5))}, seed=1) != arrivals, "another seed, another day"
    assert list(TRAFFIC) == ["shifting", "stationary", "second shifting", "second stationary"]


def test_the_planner_loses_no_request_and_keeps_six_moves_an_hour() -> None:
    hours = [hour("chat", 1000, 200, 1.0), hour("code", 2000, 30, 1.0), hour("documents", 6000, 300, 0.1)]
    found = planner_day(hours, seconds=3600.0, only="stationary", controls=["planner", "fixed 6:2", "reactive ±1"])
    runs = {run["name"]: run for run in found["traffic"]["stationary"]["runs"]}
    assert set(runs) == {"planner", "reactive ±1", "fixed 6:2"}
    assert all(run["unfinished"] == 0 for run in runs.values())
    assert all(run["most_moves_in_an_hour"] <= 6 for run in runs.values())
    assert runs["planner"]["attained"] >= runs["fixed 6:2"]["attained"] - 0.01
    assert "planner" in summary(found)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "needs recorded traffic"),
        (["--hours", "30"], "--hours must be above 0 and at most 24"),
        (["--traffic", "odd"], "--traffic must be one of shifting, stationary"),
        (["--chat", "no.csv", "--code", "no.csv", "--documents", "no.csv"], "cannot read it"),
    ],
)
def test_the_experiment_refuses_in_one_line(options: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("experiment", "planner-day", *options)


def test_plan_prints_the_frontier_as_text_and_json() -> None:
    options = ["--config", "llama-3.1-8b", "--gpus", "16", "--input", "2000", "--output", "200", "--rate", "10", "--tp", "1"]
    out = StringIO()
    call_command("plan", *options, "--json", stdout=out)
    found = json.loads(out.getvalue())["layouts"]
    assert any(each["keeps_targets"] for each in found)
    assert [each["cost_per_hour"] for each in found] == sorted(each["cost_per_hour"] for each in found)
    text = StringIO()
    call_command("plan", *options, stdout=text)
    assert "TTFT p99" in text.getvalue()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--input", "10", "--output", "10"], "give --rate, or a --trace"),
        (["--rate", "1"], "give --input and --output, or a --trace"),
        (["--rate", "1", "--input", "10", "--output", "10", "--mode", "odd"], "mode must be one of"),
        (["--trace", str(Path("no.csv"))], "cannot read it"),
        (["--trace", "no.csv", "--output", "10"], "give --trace or --output, not both; a trace has its own lengths"),
    ],
)
def test_plan_refuses_in_one_line(options: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("plan", "--config", "llama-3.1-8b", *options)

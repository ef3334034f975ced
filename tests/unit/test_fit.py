"""The phase model's coefficients and errors: what the project promises about measured phases."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.gpus import GPUS, STACK_2023
from controlplane.physics import accuracy
from controlplane.physics.fitting import Calibration, Predictor, fit_efficiencies
from controlplane.physics.fitting_errors import ErrorRow, current_errors, error_row, measured, stack_errors
from controlplane.physics.fitting_rows import phase_times, splitwise
from controlplane.physics.refit import refit


@cache
def errors() -> dict[str, ErrorRow]:
    return {row.name: row for row in [*current_errors(), *stack_errors()]}


def test_the_committed_coefficients_are_those_that_the_fit_gives() -> None:
    assert [each.name for each in refit() if not each.same] == []


def test_the_fit_gives_the_same_twice() -> None:
    assert fit_efficiencies(phase_times()) == fit_efficiencies(phase_times())


def test_every_kind_with_an_architecture_of_its_own_measurements_is_calibrated_and_no_other() -> None:
    assert {phase.gpu for phase in phase_times()} == {name for name, row in GPUS.items() if row.basis == "calibrated"}


@pytest.mark.parametrize(
    ("name", "median", "p90"),
    [
        ("all of phase_times.json", 0.03, 0.06),
        ("these three together", 0.06, 0.10),
        ("the same without the weak prior", 0.06, 0.10),
        ("Llama-2-70B decode", 0.05, 0.10),
        ("Llama-2-70B prefill", 0.08, 0.20),
        ("BLOOM-176B decode, but the calibration rows", 0.08, 1.0),
    ],
)
def test_errors_stay_within_what_is_promised(name: str, median: float, p90: float) -> None:
    row = errors()[name]
    assert row.median <= median
    assert row.p90 <= p90


def test_runs_that_are_no_measurement_are_left_out() -> None:
    phases = splitwise()
    assert {phase.gpu for phase in phases} == {"a100-sxm", "h100-sxm"}
    assert not [
        phase for phase in phases if phase.model == "llama-2-70b" and phase.tensor_parallel == 2 and phase.batch == 64
    ]
    assert len(phases) == len(set(phases)) == 76 + 112 + 26 + 38


def test_a_context_counts_what_was_generated_and_not_what_was_asked_for() -> None:
    ended_early = [phase for phase in measured("llama-2-70b") if phase.answer == 8192]
    assert ended_early
    assert all(phase.tokens < 1500 for phase in ended_early)


def test_bloom_needs_one_row_for_each_gpu() -> None:
    floors = {key: seconds for key, seconds in (STACK_2023.host_layer_s or {}).items() if key[0] == "llama"}
    borrowed = Predictor(Calibration.committed(replace(STACK_2023, host_layer_s=floors)))
    decodes = [phase for phase in measured("bloom-176b") if phase.kind == "decode"]
    own = errors()["BLOOM-176B decode, but the calibration rows"]
    assert error_row("borrowed", False, (borrowed.ratio(phase) - 1 for phase in decodes)).median > 3 * own.median


def test_errors_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no phases to judge: nothing"):
        error_row("nothing", False, [])


def test_a_document_is_the_same_if_only_last_digits_differ() -> None:
    assert accuracy.same_text("median 2.6%, 28 rows", "median 2.7%, 28 rows")
    assert not accuracy.same_text("median 2.6%, 28 rows", "median 3.6%, 28 rows")
    assert not accuracy.same_text("median 2.6%, 28 rows", "median 2.6%, 29 rows")
    assert not accuracy.same_text("median 2.6%", "mean 2.6%")


def test_the_command_checks_code_and_document() -> None:
    call_command("fit", check=True, stdout=StringIO())


def test_the_command_tells_programs_what_it_tells_people() -> None:
    out = StringIO()
    call_command("fit", check=True, json=True, stdout=out)
    found = json.loads(out.getvalue())
    assert set(found) == {"coefficients", "errors", "misses", "splits"}
    assert found["errors"]["current"][0]["phases"] == 28


def test_a_document_that_is_out_of_date_fails_the_check(tmp_path: Path, settings: Any) -> None:
    settings.BASE_DIR = tmp_path
    with pytest.raises(CommandError, match=r"out of date; run `manage.py fit`"):
        call_command("fit", check=True, stdout=StringIO())
    (tmp_path / "docs").mkdir()
    call_command("fit", stdout=StringIO(), stderr=StringIO())
    call_command("fit", check=True, stdout=StringIO())

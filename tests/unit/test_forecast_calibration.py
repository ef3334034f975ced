"""`manage.py forecast --calibration`: constants from an engine's own metrics in place of the GPU table's."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.calibration import Calibration, Constants, Errors, Sample, calibration_document

CONSTANTS = Constants(linear=0.378, attention=0.378, kv=0.3785, step_s=0.3e-3, sequence_s=0.0)
"""About half of what the table has for an H100."""


def calibration(gpu: str, constants: Constants = CONSTANTS, **fields: Any) -> Calibration:
    errors = {"itl": Errors(0.05, 0.1, 40), "prefill": Errors(0.07, 0.2, 40)}
    return Calibration("a-model", gpu, 1, constants, Sample(40, 20.0, 5000, 90000, 9000), errors, **fields)


def written(folder: Path, gpu: str, **fields: Any) -> Path:
    path = folder / f"{gpu}.json"
    path.write_text(json.dumps(calibration_document(calibration(gpu, **fields))))
    return path


def forecast(*calibrations: Path, model: str = "llama-3.1-8b", **options: Any) -> dict[str, Any]:
    out = StringIO()
    asked = {"layout": ["agg:2xTP1"], "input": 1000, "output": 50, "rate": 1.0, "seconds": 60.0, "seeds": 1} | options
    call_command("forecast", model=model, calibration=list(calibrations), json=True, stdout=out, **asked)
    return dict(json.loads(out.getvalue()))


def test_half_the_efficiency_takes_twice_the_time(tmp_path: Path) -> None:
    table = forecast()
    slow = forecast(written(tmp_path, "h100-sxm"))
    assert slow["ttft_ms"]["p50"] == pytest.approx(2 * table["ttft_ms"]["p50"], rel=0.1)
    assert any("metrics of a-model at TP1 (median error 5% of itl, 7% of prefill)" in n for n in notes(slow))
    assert not notes(table)


def test_what_a_calibration_leaves_open_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, "h100-sxm", uncertain=("kv",), request_s=0.003)
    told = " ".join(notes(forecast(path, layout=["agg:1xTP2"])))
    assert "did not tell kv" in told and "calibrated at TP1, used at TP2" in told and "add 3.0 ms to every TTFT" in told


def test_a_calibrated_kind_is_no_guess(tmp_path: Path) -> None:
    assert any("l40s" in guess for guess in forecast(gpu="l40s")["guesses"])
    assert not forecast(written(tmp_path, "l40s"), gpu="l40s")["guesses"]


@pytest.mark.parametrize("saturate", [None, "steady", "p99"])
def test_vllm_on_a_processor_can_be_forecast_once_it_is_calibrated(tmp_path: Path, saturate: str | None) -> None:
    slow = Constants(linear=0.13, attention=0.3, kv=0.4, step_s=1e-3, sequence_s=1e-4)
    path = written(tmp_path, "cpu", constants=slow, kv_tokens=16384, block_size=32)
    told = forecast(path, model="tiny-llama", gpu="cpu", saturate=saturate, input=500, output=20)
    assert told["layout"] == "agg:2xTP1@cpu" and told["pools"][0]["kv_capacity_tokens"] == 16384
    assert told["ttft_ms"]["p50"] > 10


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "calibration .*: Expecting value"),
        ("[]", "expected an object"),
        ('{"model": "m"}', "gpu: is missing; write it with `manage.py calibrate`"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(CommandError, match=problem):
        forecast(path)


def test_a_calibration_that_is_not_there_or_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        forecast(tmp_path / "none.json")
    path = written(tmp_path, "h100-sxm")
    with pytest.raises(CommandError, match="one --calibration for each kind"):
        forecast(path, path)
    with pytest.raises(CommandError, match="'cpu' is not known"):
        forecast(gpu="cpu")


def notes(document: dict[str, Any]) -> list[str]:
    return [note for layout in document["layouts"] for note in layout["notes"]]

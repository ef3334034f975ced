"""`manage.py calibrate` on saved pages, and what it refuses."""

from __future__ import annotations

import json
import random
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.core.calibration import read_calibration
from controlplane.core.forecast import Arrival
from tests.simulated_engines import LLAMA_8B, spec
from tests.virtual_engines import VirtualFleet
from workers.engines.simulated.settings import settings_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a simulated engine under load, one every two seconds, and the config of its model."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    fleet, chance = VirtualFleet(settings_of(spec(args={"speed": 1.0}), 0, "h", 1, 2)), random.Random(4)
    for number in range(10):
        path = folder / f"{number}.txt"
        fleet.clock.call_at(2.0 * number, lambda path=path: path.write_text(fleet.engines[0].metrics_page()))
    fleet.serve([Arrival(0.4 * number, chance.randint(100, 4000), 60) for number in range(50)])
    return folder


def run(folder: Path, *pages: str, **options: object) -> str:
    out = StringIO()
    sources = [page if "://" in page else str(folder / page) for page in pages]
    asked = {"config": str(folder / "config.json"), "gpu": "h100-sxm"} | options
    call_command("calibrate", metrics=sources, stdout=out, **asked)
    return out.getvalue()


def test_pages_become_a_calibration_that_can_be_read(folder: Path, tmp_path: Path) -> None:
    pages = [f"{number}.txt" for number in range(10)]
    document = json.loads(run(folder, *pages, json=True, output=tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == document
    found = read_calibration(document)
    assert found.sample.windows == 9 and found.constants.linear == pytest.approx(0.756, rel=0.15)
    said = run(folder, *pages)
    assert "linear" in said and "error of itl" in said


@pytest.mark.parametrize(
    ("pages", "options", "problem"),
    [
        (("1.txt",), {}, "two or more"),
        (("1.txt", "none.txt"), {}, "cannot read .*none.txt: No such file"),
        (("1.txt", "config.json"), {}, "config.json has no vllm:iteration_tokens_total"),
        (("5.txt", "1.txt"), {}, "the older first"),
        (("1.txt", "5.txt"), {"gpu": "abacus"}, "'abacus' is not known"),
        (("1.txt", "5.txt"), {"tp": 0}, "tp must be a whole number"),
        (("1.txt", "5.txt"), {"config": "no-such-model"}, "give a file or one of"),
        (("http://127.0.0.1:1", "1.txt"), {}, "one address alone"),
        (("http://127.0.0.1:1",), {}, "does not answer"),
        (("http://127.0.0.1:99999",), {}, "is no address"),
        (("http://[::1",), {}, "is no address: Invalid IPv6 URL"),
        (("http://127.0.0.1/\x1b[31m",), {}, r"'http://127.0.0.1/\\x1b\[31m' is no address"),
        (("http://me:hidden@127.0.0.1",), {}, "^the address of an engine has no user in it; give the engine's key"),
        (("ftp://127.0.0.1",), {}, "is no http address"),
        (("http://127.0.0.1:1",), {"seconds": float("nan")}, "seconds must"),
        (("http://127.0.0.1:1",), {"seconds": "1 min"}, "seconds must be above 0 .* got '1 min'"),
        (("http://127.0.0.1:1",), {"interval": 0.01}, "interval must be at least"),
        (("http://127.0.0.1:1",), {"output": Path("/nowhere/found.json")}, "no such folder"),
        (("http://127.0.0.1:1",), {"interval": 0.0}, "interval must"),
        (("http://127.0.0.1:1",), {"key_file": Path("/nowhere")}, "cannot read --key-file"),
        (
            ("1.txt", "5.txt"),
            {"output": Path("/nowhere/found.json")},
            "--output: /nowhere/found.json: there is no such folder",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    folder: Path, pages: tuple[str, ...], options: dict[str, object], problem: str
) -> None:
    with pytest.raises(CommandError, match=problem):
        run(folder, *pages, **options)

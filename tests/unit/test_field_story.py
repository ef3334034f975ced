"""The field story: what its figures mean, that nothing gets lost on the way to the page, and the transfer's arithmetic."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from controlplane.core.gpus import gpu
from controlplane.core.modelconfig import read_shape
from controlplane.core.perf import PhaseModel
from controlplane.physics.catalog import read_config
from controlplane.physics.experiments import fieldpage, fieldstory, timeline
from controlplane.physics.experiments.fieldrows import findings
from controlplane.physics.management.commands.experiment import table
from controlplane.physics.workload import Distribution, draw

SMALL = fieldstory.Plan((3.0, fieldstory.TIMELINE_RATE), (50.0,), 1, 20.0, 5.0, 60)
SHAPE = read_shape(read_config(fieldstory.MODEL))
MODEL = PhaseModel(SHAPE, gpu(fieldstory.GPU), fieldstory.TENSOR_PARALLEL)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return fieldstory.field_story(plan=SMALL)


@pytest.mark.parametrize(("gbps", "milliseconds"), [(100, 107), (400, 27)])
def test_the_transfer_of_4096_tokens_takes_its_bytes_over_the_link(gbps: float, milliseconds: int) -> None:
    seconds = fieldstory.transfer_s(SHAPE, 4096, gbps)
    assert round(1e3 * seconds) == milliseconds
    assert seconds == 4096 * 327_680 * 8 / (gbps * 1e9)


def test_prefill_is_busiest_inside_its_kernels_and_decode_less_so(document: dict[str, Any]) -> None:
    prefill, decodes = document["prefill"], document["decode"]
    assert prefill["mfu"] < prefill["tensor"] < prefill["tensor_peak"]
    assert all(each["mfu"] < each["tensor"] < each["tensor_peak"] < prefill["tensor"] for each in decodes)
    assert all(one["tensor"] > more["tensor"] for one, more in pairwise(decodes))


def test_only_engines_that_do_both_stall(document: dict[str, Any]) -> None:
    busy = document["long"][-1]
    assert busy["rate"] == fieldstory.TIMELINE_RATE
    assert busy["whole"]["longest_gap_ms"] >= document["prefill"]["milliseconds"]
    assert busy["whole"]["stalled"] > 0 == busy["split"]["stalled"]


def test_all_layouts_meet_the_same_requests_on_all_gpus(document: dict[str, Any]) -> None:
    for row in (*document["long"], *document["short"]):
        for name in {"whole", "split", "split_for_long"} & row.keys():
            assert sum(pool["engines"] for pool in row[name]["pools"].values()) == fieldstory.ENGINES
    assert len(fieldstory.splits()) == fieldstory.ENGINES - 1


def test_every_token_of_one_engine_is_a_step_of_its_timeline() -> None:
    arrivals = draw(Distribution(4096, 20, rate=0.01, seconds=250.0), 3)
    steps = timeline.steps(MODEL, fieldstory.SETTINGS, arrivals, "mixed")
    assert len(steps) == 20 * len(arrivals), "one by one, each prompt and each further token takes a step of its own"
    decodes = timeline.steps(MODEL, fieldstory.SETTINGS, arrivals, "decode")
    assert max(cost.seconds for _, cost in decodes) < MODEL.prefill(4096).seconds / 10
    assert all(before.at_s + before.cost.seconds <= after.at_s + 1e-9 for before, after in pairwise(steps))


def test_each_figure_of_the_field_has_the_models_beside_it_and_a_reason(document: dict[str, Any]) -> None:
    found = findings(document)
    assert [finding.field for finding in found] == [
        "about 92 % in prefill bursts",
        "28–30 %",
        "seen; gone once split",
        "2 × better or more",
        "20–30 % worse",
        "107 ms at 100 Gb/s, 27 ms at 400",
    ]
    assert all(finding.figures and finding.verdict and finding.why for finding in found)
    text = table(found)
    for finding in found:
        assert finding.title in text
        assert all(figure.definition in text and figure.value in text for figure in finding.figures)


def test_the_page_holds_all_findings_and_fetches_nothing(document: dict[str, Any]) -> None:
    page = fieldpage.rendered({**document, "guesses": ["<b>a guess</b>"]})
    head = page.partition("<script")[0]
    assert all(figure.value in head for finding in findings(document) for figure in finding.figures)
    assert "&lt;b&gt;a guess&lt;/b&gt;" in head
    assert not re.findall(r'(?:src|href)\s*=\s*"', head)
    assert "default-src 'none'" in head


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="name a file in it"):
        call_command("experiment", "field-story", html=tmp_path)
    with pytest.raises(CommandError, match="no such folder"):
        call_command("experiment", "field-story", html=tmp_path / "none" / "page.html")


def test_an_unknown_experiment_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CommandError, match=r"choose from '?field-story"):
        call_command("experiment", "nothing")

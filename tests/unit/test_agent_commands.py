"""Which commands an agent obeys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.codec import encode
from controlplane.core.protocol import Command, EngineSpec, Rank
from controlplane.core.signing import seal
from workers.commands import (
    CommandRefused,
    Done,
    Go,
    Renumber,
    judge_drain,
    judge_start,
    judge_stop,
    open_command,
    refuse_gpus,
)
from workers.records import EngineRecord

KEY = b"k" * 32
SPEC = EngineSpec(
    id="e-1", model="m", source="org/m", connector="nixl", ranks=(Rank("n1", ("g0",)),), kind="vllm", spec_generation=5
)
START = Command(node="n1", verb="start", issued_at=1.0, spec=SPEC, spec_generation=5)
STARTS = {"start"}


def record(state: str, generation: int = 5, **changes: Any) -> EngineRecord:
    spec = replace(SPEC, spec_generation=generation)
    return EngineRecord("e-1", 0, generation, spec=spec, incarnation=1, state=state, **changes)


def test_a_signed_command_is_opened() -> None:
    assert open_command(seal(KEY, encode(START)), KEY, "n1", STARTS) == START


@pytest.mark.parametrize("envelope", [None, 7, {"body": "{}"}, "", "{}", "nonsense", '{"body": 1, "sig": 2}', "[" * 100_000])
def test_what_is_no_envelope_is_refused(envelope: object) -> None:
    with pytest.raises(CommandRefused, match="envelope"):
        open_command(envelope, KEY, "n1", STARTS)


def test_a_forged_or_changed_command_is_refused() -> None:
    with pytest.raises(CommandRefused, match="not made with this node's key"):
        open_command(seal(b"x" * 32, encode(START)), KEY, "n1", STARTS)
    with pytest.raises(CommandRefused, match="signature"):
        open_command(seal(KEY, encode(START)).replace("e-1", "e-2"), KEY, "n1", STARTS)


def test_a_command_for_another_node_or_task_is_refused() -> None:
    with pytest.raises(CommandRefused, match="for node 'n1'"):
        open_command(seal(KEY, encode(START)), KEY, "n2", STARTS)
    with pytest.raises(CommandRefused, match="does not belong to this task"):
        open_command(seal(KEY, encode(START)), KEY, "n1", {"stop"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec": None}, "no engine id"),
        ({"spec": None, "engine": "e-1"}, "needs a spec"),
        ({"spec_generation": 4}, "different generations"),
        ({"engine": "e-2"}, "its spec is of 'e-1'"),
        ({"rank": 1}, "no rank 1"),
        ({"rank": -1}, "may not be negative"),
        ({"spec": replace(SPEC, id="../../etc")}, "no engine id"),
        ({"spec": replace(SPEC, id="")}, "no engine id"),
        ({"spec": replace(SPEC, model="")}, "model must have a name"),
        ({"spec": replace(SPEC, ranks=(Rank("n2", ("g0",)),))}, "belongs to node 'n2'"),
        ({"spec": replace(SPEC, ranks=(Rank("n1", ()),))}, "needs one or more"),
        ({"spec": replace(SPEC, ranks=(Rank("n1", ("g0", "g0")),))}, "different GPUs"),
        ({"spec": replace(SPEC, port=80)}, "ports are 0 or 1024"),
        ({"spec": replace(SPEC, port=9000, side_port=9000)}, "the same"),
    ],
)
def test_a_malformed_start_is_refused_with_its_fault(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CommandRefused, match=why):
        open_command(seal(KEY, encode(replace(START, **changes))), KEY, "n1", STARTS)


def test_a_spec_of_the_wrong_shape_is_refused_with_the_path_of_the_fault() -> None:
    document = encode(START)
    document["spec"]["ranks"][0]["gpus"] = "g0"
    with pytest.raises(CommandRefused, match=r"spec\.ranks\[0\]\.gpus: expected a list"):
        open_command(seal(KEY, document), KEY, "n1", STARTS)


@pytest.mark.parametrize("state", ["failed", "stopped", "ready", "starting"])
def test_a_start_of_a_generation_that_was_seen_is_done_at_most_once(state: str) -> None:
    assert isinstance(judge_start(record(state), SPEC), Done)


def test_a_start_of_an_older_generation_is_stale() -> None:
    with pytest.raises(CommandRefused, match="stale: generation 5 of e-1, 6 was seen"):
        judge_start(record("failed", 6), SPEC)


@pytest.mark.parametrize("state", ["planned", "failed", "stopped"])
def test_a_newer_start_of_what_does_not_run_is_obeyed(state: str) -> None:
    assert judge_start(record(state, 4), SPEC) == Go()


def test_a_newer_start_of_the_same_running_engine_only_renumbers_it() -> None:
    assert judge_start(record("ready", 4), replace(SPEC, incarnation_floor=3)) == Renumber()


def test_a_newer_start_of_another_spec_never_replaces_a_running_engine() -> None:
    with pytest.raises(CommandRefused, match="stop it first"):
        judge_start(record("ready", 4), replace(SPEC, source="org/other"))


def test_a_start_during_a_stop_is_to_come_again() -> None:
    with pytest.raises(CommandRefused, match="send it again later"):
        judge_start(record("stopping", 4), SPEC)


def test_stops_are_obeyed_once_in_order() -> None:
    assert judge_stop(record("ready"), 5) == Go()
    assert judge_stop(record("failed"), 5) == Go()
    assert judge_stop(record("starting", 4), 5) == Go()
    assert isinstance(judge_stop(record("stopped"), 5), Done)
    with pytest.raises(CommandRefused, match="stale"):
        judge_stop(record("ready", 6), 5)


def test_a_stop_that_comes_first_keeps_the_late_start_out() -> None:
    tombstone = EngineRecord("e-1", 0, 5, state="stopped")
    assert isinstance(judge_start(tombstone, SPEC), Done)


def test_drains_and_undrains_are_obeyed_in_the_order_they_were_issued() -> None:
    drain = Command(node="n1", verb="drain", issued_at=10.0, engine="e-1", spec_generation=5)
    assert judge_drain(record("ready", drain_ordered_at=9.0), drain) == Go()
    assert isinstance(judge_drain(record("ready", drain_ordered_at=11.0), drain), Done)
    with pytest.raises(CommandRefused, match="starting, not serving"):
        judge_drain(record("starting"), drain)


def test_a_gpu_that_is_unknown_or_held_is_refused_by_name() -> None:
    assert refuse_gpus(["a"], ["a", "b"], {"b": "e-2"}) == ""
    assert refuse_gpus(["b"], ["a", "b"], {"b": "e-2"}) == "GPU b is held by engine e-2"
    assert "no GPU 'c'" in refuse_gpus(["c"], ["a", "b"], {})

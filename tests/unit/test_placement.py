"""Which GPUs an engine gets, and why not others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.placement import Placement, Room, Want, place
from controlplane.core.world import GpuState, NodeState, PoolState


def node(name: str, **changes: object) -> NodeState:
    return replace(NodeState(name, seen_at=1.0), **changes)  # type: ignore[arg-type]


def gpus(name: str, count: int = 8, taken: tuple[int, ...] = (), kind: str = "h100-sxm") -> tuple[GpuState, ...]:
    return tuple(GpuState(f"{name}-{i}", name, i, kind, "e-other" if i in taken else "") for i in range(count))


def test_an_engine_gets_an_aligned_run_of_gpus_on_one_node() -> None:
    placement, _ = place(Want(4), [node("a")], gpus("a", taken=(0, 1)))
    assert placement is not None
    assert placement.gpus == ("a-4", "a-5", "a-6", "a-7")


def test_without_an_aligned_run_the_one_that_spans_least_is_taken() -> None:
    placement, _ = place(Want(2), [node("a")], gpus("a", count=6, taken=(0, 2, 4)))
    assert placement is not None
    assert placement.gpus == ("a-1", "a-3")


def test_a_node_with_the_models_engines_comes_before_a_fuller_one() -> None:
    all_gpus = gpus("a", taken=(0,)) + gpus("b", taken=(0, 1, 2))
    placement, _ = place(Want(1, peers={"a": 1}), [node("a"), node("b")], all_gpus)
    assert placement is not None and placement.node == "a"


def test_then_come_nodes_of_the_same_fabric_and_then_of_the_same_zone() -> None:
    labels = {"a": {"zone": "z1", "fabric": "f1"}, "b": {"zone": "z1", "fabric": "f2"}, "c": {"zone": "z2", "fabric": "f1"}}
    labels["d"] = {"zone": "z2", "fabric": "f3"}
    nodes = [node(name, labels=each) for name, each in labels.items()]
    free = {name: gpus(name, count=2) for name in "bcd"}
    here = gpus("a", count=2, taken=(0, 1))
    order = []
    for _ in range(3):
        placement, _ = place(Want(2, peers={"a": 1}), nodes, here + tuple(gpu for each in free.values() for gpu in each))
        assert placement is not None
        order.append(placement.node)
        del free[placement.node]
    assert order == ["c", "b", "d"]


def test_what_is_taken_in_one_plan_is_not_found_again() -> None:
    room = Room([node("a"), node("b")], gpus("a", count=1) + gpus("b", count=2))
    pool = PoolState("m", "decode", 3)
    found = []
    while (placement := room.find(pool)[0]) is not None:
        room.take("m", placement)
        found += placement.gpus
    assert found == ["a-0", "b-0", "b-1"]
    assert room.find(pool)[1][1:] == (
        "a: has 0 of 1 fitting GPUs free, 1 too few",
        "b: has 0 of 2 fitting GPUs free, 1 too few",
    )


def test_otherwise_the_fullest_node_that_fits_is_taken() -> None:
    all_gpus = gpus("a") + gpus("b", taken=(0, 1, 2))
    placement, _ = place(Want(4), [node("a"), node("b")], all_gpus)
    assert placement is not None and placement.node == "b"


def test_the_first_kind_asked_for_that_has_room_is_taken() -> None:
    all_gpus = gpus("a", count=1, kind="l4") + gpus("b", count=2, kind="h100-sxm")
    placement, _ = place(Want(2, ("l4", "h100-sxm")), [node("a"), node("b")], all_gpus)
    assert placement is not None and placement.kind == "h100-sxm"


@pytest.mark.parametrize(
    ("want", "state", "reason"),
    [
        (Want(4), node("a", lost=True), "a: its agent is not heard"),
        (Want(4), node("a", seen_at=None), "a: its agent never reported"),
        (Want(4), node("a", cordoned=True), "a: is cordoned"),
        (Want(4, node_labels={"zone": "x"}), node("a"), "a: lacks the label zone=x"),
        (Want(4, ("b200",)), node("a"), "a: has only GPUs of kind h100-sxm"),
        (Want(8), node("a"), "a: has 7 of 8 fitting GPUs free, 1 too few"),
    ],
)
def test_a_refusal_says_what_is_missing_on_each_node(want: Want, state: NodeState, reason: str) -> None:
    placement, reasons = place(want, [state], gpus("a", taken=(0,)))
    assert placement is None
    assert reasons[0].startswith(f"needs {want.tensor_parallel} free GPUs of one kind")
    assert reason in reasons


def test_no_node_at_all_is_said_so() -> None:
    assert place(Want(1), [], ())[1] == ("needs 1 free GPU on one node", "there is no node")


@given(
    taken=st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 7))),
    size=st.sampled_from((1, 2, 4, 8)),
    kinds=st.sampled_from(((), ("h100-sxm",), ("l4", "h100-sxm"))),
)
def test_a_placement_is_always_free_of_one_kind_and_on_one_node(
    taken: set[tuple[str, int]], size: int, kinds: tuple[str, ...]
) -> None:
    all_gpus = tuple(gpu for name in "abc" for gpu in gpus(name, taken=tuple(i for n, i in taken if n == name)))
    placement, reasons = place(Want(size, kinds), [node(name) for name in "abc"], all_gpus)
    most = max(sum(not gpu.engine for gpu in all_gpus if gpu.node == name) for name in "abc")
    assert (placement is not None) == (most >= size)
    if placement is None:
        assert len(reasons) == 4
        return
    chosen = [gpu for gpu in all_gpus if gpu.uuid in placement.gpus]
    assert len(chosen) == size
    assert {(gpu.node, gpu.kind, gpu.engine) for gpu in chosen} == {(placement.node, placement.kind, "")}


def where(placement: Placement | None) -> list[tuple[str, tuple[str, ...]]]:
    return [(rank.node, rank.gpus) for rank in placement.ranks] if placement else []


def test_all_stages_go_on_one_node_if_it_has_room() -> None:
    placement, _ = place(Want(2, stages=2), [node("a"), node("b")], gpus("a", count=3) + gpus("b", taken=(0, 1)))
    assert where(placement) == [("b", ("b-2", "b-3")), ("b", ("b-4", "b-5"))]


def test_else_stages_share_nodes_of_one_fabric_before_those_of_one_zone() -> None:
    labels = {"a": {"zone": "z1", "fabric": "f1"}, "b": {"zone": "z1", "fabric": "f2"}, "c": {"zone": "z1", "fabric": "f2"}}
    nodes = [node(name, labels=each) for name, each in labels.items()]
    all_gpus = gpus("a", count=3) + gpus("b", count=2) + gpus("c", count=2)
    placement, _ = place(Want(2, stages=2), nodes, all_gpus)
    assert where(placement) == [("b", ("b-0", "b-1")), ("c", ("c-0", "c-1"))]
    without_c, _ = place(Want(2, stages=2), nodes, gpus("a", count=3) + gpus("b", count=2))
    assert {name for name, _ in where(without_c)} == {"a", "b"}


def test_stages_use_as_few_nodes_as_possible() -> None:
    all_gpus = gpus("a", count=1) + gpus("b", count=2) + gpus("c", count=1)
    placement, _ = place(Want(1, stages=3), [node(name) for name in "abc"], all_gpus)
    assert where(placement) == [("b", ("b-0",)), ("b", ("b-1",)), ("a", ("a-0",))]


def test_stages_find_room_all_or_none_and_a_refusal_counts_them() -> None:
    all_gpus = gpus("a", count=3) + gpus("b", count=2)
    placement, reasons = place(Want(2, stages=3), [node("a"), node("b", cordoned=True)], all_gpus)
    assert placement is None
    assert reasons == (
        "needs 3 x 2 free GPUs of one kind, each stage on one node",
        "a: has 3 of 3 fitting GPUs free: room for 1 of 3 stages",
        "b: is cordoned",
    )


def test_stages_never_mix_kinds_of_gpu() -> None:
    all_gpus = gpus("a", count=1) + gpus("b", count=1, kind="l4") + gpus("c", count=1, kind="l4")
    placement, _ = place(Want(1, stages=2), [node(name) for name in "abc"], all_gpus)
    assert placement is not None and placement.kind == "l4"
    assert [name for name, _ in where(placement)] == ["b", "c"]
    assert place(Want(1, ("h100-sxm",), stages=2), [node(name) for name in "abc"], all_gpus)[0] is None


def test_an_engine_of_one_process_keeps_its_stages_on_one_node() -> None:
    room = Room([node("a"), node("b")], gpus("a", count=1) + gpus("b", count=1))
    pool = PoolState("m", "mixed", 1, pipeline_parallel=2)
    assert room.find(replace(pool, one_process=True))[1][0] == "needs 2 free GPUs of one kind on one node"
    placement, _ = room.find(pool)
    assert placement is not None
    room.take("m", placement)
    assert room.find(pool)[0] is None and room.placed == 1

"""Which losses a kill excuses, and that a GPU in two engines is seen."""

from __future__ import annotations

import pytest

from controlplane.core.protocol import AgentFact, EngineFact
from controlplane.proof.invariants import broken_now
from controlplane.proof.killing import forbidden
from controlplane.proof.streams import Loss
from controlplane.proof.watch import quantile

ON_E1 = "disaggregated; prefill=e1; decode=e2; reason=disaggregated"


@pytest.mark.parametrize(
    ("victim", "outcome", "route", "excused"),
    [
        ("engine", "failed", ON_E1, True),
        ("engine", "failed", ON_E1.replace("e1", "e3"), False),
        ("engine", "refused", "", False),
        ("engine", "truncated", ON_E1, False),
        ("engine", "duplicated", ON_E1, False),
        ("router", "failed", ON_E1, True),
        ("router", "refused", "", True),
        ("router", "wrong", ON_E1, False),
        ("control", "failed", ON_E1, False),
        ("valkey", "refused", "", False),
    ],
)
def test_a_kill_excuses_streams_of_its_own_that_end_so_that_their_client_knows(
    victim: str, outcome: str, route: str, excused: bool
) -> None:
    assert (forbidden([Loss(0.0, outcome, "", route, "")], victim, "e1") == []) == excused


def fact(node: str, *engines: tuple[str, str, str]) -> AgentFact:
    told = tuple(EngineFact(id, "m", 0, 1, 1, state, "simulated", gpus=(gpu,)) for id, state, gpu in engines)
    return AgentFact(node, "boot", 1, 0.0, "", engines=told)


def test_a_gpu_in_two_running_engines_is_seen() -> None:
    assert broken_now({"n1": fact("n1", ("e1", "ready", "g1"), ("e2", "ready", "g2"), ("e3", "stopped", "g1"))}) == []
    (problem,) = broken_now({"n1": fact("n1", ("e1", "draining", "g1"), ("e2", "starting", "g1"))})
    assert problem == "GPU g1 is in engines e1, e2"


def test_a_quantile_is_a_value_of_the_sample() -> None:
    assert quantile([], 0.5) is None
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.75, 0.99)] == [1.0, 2.0, 3.0, 4.0]

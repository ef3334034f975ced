"""How an engine comes into its share."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core.ramp import weights
from controlplane.core.world import EngineState, World

OLD = EngineState("e-1", "m", "decode", 1, state="ready", state_since=0.0)
NEW = EngineState("e-2", "m", "decode", 2, state="ready", state_since=0.0, move_since=1000.0)


def at(now: float, *engines: EngineState) -> dict[str, float]:
    return weights(World(now, 0.0, engines=engines or (OLD, NEW)))


def test_the_weight_rises_in_steps_from_when_it_got_its_role() -> None:
    assert [at(1000.0 + seconds).get("e-2", 1.0) for seconds in (0, 0.9, 1, 2, 3, 100)] == [0.25, 0.25, 0.5, 0.75, 1, 1]


def test_an_engine_just_started_is_spared_too() -> None:
    assert at(1000.5, OLD, replace(NEW, move_since=None, state_since=1000.0)) == {"e-2": 0.25}


def test_where_all_came_together_nobody_is_spared() -> None:
    assert at(1000.0, replace(OLD, state_since=999.0), NEW) == {}
    assert at(1000.0, NEW) == {}


def test_a_clock_that_was_set_back_spares_nobody_for_long() -> None:
    assert at(900.0) == {}


def test_other_pools_and_engines_out_of_the_table_do_not_count() -> None:
    assert at(1000.0, replace(OLD, role="prefill"), NEW) == {}
    assert at(1000.0, replace(OLD, held=True), NEW) == {}

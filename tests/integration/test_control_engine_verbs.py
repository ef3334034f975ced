"""Single engines and nodes: taken out of use and brought back, replaced, removed."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.control import actions
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import done, fleet, gpus, node, refusal, sizes, steps

pytestmark = pytest.mark.django_db


def engine(id: str) -> models.Engine:
    return models.Engine.objects.get(id=id)


def test_an_engine_is_held_out_of_the_table_and_comes_back() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = actions.drain_engine(ANN, "m-1", reason="strange noises")
    assert engine("m-1").held and steps(operation) == ["hold m-1"]
    entry = operation.audit.get()
    assert (entry.subject, entry.reason) == ("engine:m-1", "strange noises")
    assert (entry.before, entry.after) == ({"held": {"m-1": False}}, {"held": {"m-1": True}})
    done()
    assert "is held out of the table already" in str(refusal(actions.drain_engine, ANN, "m-1"))
    assert steps(actions.undrain_engine(ANN, "m-1")) == ["release m-1"] and not engine("m-1").held
    done()
    assert "m-1 is not held" in str(refusal(actions.undrain_engine, ANN, "m-1"))


def test_no_engine_is_replaced_by_one_that_finds_no_room() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    actions.cordon_node(ANN, "n1")
    refused = refusal(actions.restart_engine, ANN, "m-1")
    assert refused.kind == "no_capacity" and "n1: is cordoned" in str(refused)
    assert engine("m-1").wanted
    actions.uncordon_node(ANN, "n1")
    assert steps(actions.restart_engine(ANN, "m-1")) == ["stop m-1", "start prefill"]


def test_an_engine_that_is_held_exchanges_no_role() -> None:
    fleet("disaggregated", prefill=2, decode=1)
    actions.drain_engine(ANN, "m-1")
    done()
    refused = refusal(actions.exchange_roles, ANN, "m", "m-1", "m-3")
    assert "m-1 is held out of the table: undrain_engine m-1 first" in str(refused), "nobody would decode"
    actions.exchange_roles(ANN, "m", "m-2", "m-3")


def test_a_drained_engine_is_brought_back_by_a_rollback() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = actions.drain_engine(ANN, "m-1")
    done()
    assert steps(actions.rollback(ANN, operation.pk)) == ["release m-1"] and not engine("m-1").held


@pytest.mark.parametrize("verb", [actions.drain_engine, actions.restart_engine])
def test_the_last_serving_engine_of_a_pool_stays(verb: Any) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    models.Engine.objects.filter(id="m-2").update(state="starting")
    refused = refusal(verb, ANN, "m-1")
    assert refused.kind == "unsafe" and "pool prefill would have 0 serving engines and its floor is 1" in str(refused)
    verb(ANN, "m-2")
    done()
    models.Pool.objects.filter(role="prefill").update(floor=0)
    verb(ANN, "m-1")


@pytest.mark.parametrize("verb", [actions.drain_engine, actions.restart_engine])
def test_the_last_serving_engine_of_a_strict_model_stays_whatever_the_floor(verb: Any) -> None:
    fleet("disaggregated", prefill=1, decode=1)
    models.Pool.objects.update(floor=0)
    models.Model.objects.update(strict=True)
    refused = refusal(verb, ANN, "m-2")
    assert refused.kind == "unsafe" and "pool decode would have 0 serving engines and m is strict" in str(refused)
    models.Model.objects.update(strict=False)
    verb(ANN, "m-2")


def test_a_restarted_engine_is_replaced_by_another() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    operation = actions.restart_engine(ANN, "m-2")
    assert (engine("m-2").wanted, engine("m-2").reason) == (False, "restart_engine by ann")
    assert steps(operation) == ["stop m-2", "start prefill"] and sizes() == {"prefill": 2, "decode": 2}
    assert operation.after == {"engine": "m-2"}


@pytest.mark.parametrize("verb", [actions.drain_engine, actions.undrain_engine, actions.restart_engine])
def test_an_engine_that_is_not_there_or_moves_is_left_alone(verb: Any) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    assert str(refusal(verb, ANN, "e-9")) == "there is no engine 'e-9' that is wanted"
    models.Engine.objects.filter(id="m-1").update(move_phase="leaving", next_role="decode", held=True)
    refused = refusal(verb, ANN, "m-1")
    assert (refused.kind, str(refused)) == ("busy", "m-1 is moving to pool decode: wait until it has")


def test_a_node_is_cordoned_once() -> None:
    node("n1")
    operation = actions.cordon_node(ANN, "n1", reason="new cables")
    assert node("n1").cordoned and operation.state == "done"
    assert (operation.audit.get().before, operation.audit.get().after) == ({"cordoned": False}, {"cordoned": True})
    assert "cordoned already" in str(refusal(actions.cordon_node, ANN, "n1"))
    actions.uncordon_node(ANN, "n1")
    assert "is not cordoned" in str(refusal(actions.uncordon_node, ANN, "n1"))
    assert str(refusal(actions.cordon_node, ANN, "n7")) == "there is no node 'n7'; nodes: n1"


def test_a_node_is_removed_once_it_is_cordoned_and_empty() -> None:
    fleet("monolithic", mixed=2)
    gpus(1, on="n2")
    assert refusal(actions.remove_node, ANN, "n2").kind == "unsafe"
    actions.cordon_node(ANN, "n1")
    refused = refusal(actions.remove_node, ANN, "n1")
    assert refused.kind == "busy" and "engine m-1 (ready) is on it: move its work away first" in refused.reasons
    models.Engine.objects.update(wanted=False, state="stopped")
    models.Reservation.objects.all().delete()
    operation = actions.remove_node(ANN, "n1")
    assert not models.Node.objects.filter(name="n1").exists() and not models.Rank.objects.exists()
    assert operation.audit.get().before["engines"] == []
    assert str(refusal(actions.remove_node, ANN, "n1")) == "there is no node 'n1'; nodes: n2"


def test_engines_of_a_lost_node_that_is_removed_count_as_gone() -> None:
    fleet("monolithic", mixed=2)
    models.Node.objects.update(lost=True)
    operation = actions.remove_node(ANN, "n1")
    assert operation.before["engines"] == ["m-1", "m-2"]
    assert set(models.Engine.objects.values_list("wanted", "state", "reason")) == {
        (False, "stopped", "its node n1 was removed")
    }
    assert sizes() == {"mixed": 2}, "they are replaced elsewhere"


def test_a_node_that_never_reported_is_removed_at_once() -> None:
    actions.add_node(ANN, "typo")
    actions.remove_node(ANN, "typo")
    assert not models.Node.objects.exists()

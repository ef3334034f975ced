"""Two who apply at once, and one whose process dies: what is desired is one document's, whole."""

from __future__ import annotations

import pytest
from django.db import transaction

from controlplane.control import actions
from controlplane.control.models import AppliedState
from controlplane.control.state import document
from controlplane.control.state.applying import Applied, apply_state
from controlplane.fleet import models
from tests.integration.control_kit import ANN
from tests.integration.control_rows import at_once, fleet

pytestmark = pytest.mark.django_db(transaction=True)


def split(prefill: int, decode: int) -> document.Document:
    pools = {"prefill": {"engines": prefill}, "decode": {"engines": decode}}
    return document.read({"version": 1, "models": {"m": {"pools": pools}}})


def test_the_same_document_applied_twice_at_once_is_applied_once() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    found: list[Applied] = []

    def apply() -> None:
        found.append(apply_state(ANN, split(1, 3)))

    assert at_once(apply, apply) is None
    assert [len(each.done) for each in found] == [1, 0]
    assert models.Operation.objects.filter(verb="apply_model").count() == 1


def test_of_two_documents_at_once_one_is_applied_and_the_other_is_refused() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    refused = at_once(lambda: apply_state(ANN, split(1, 3)), lambda: apply_state(ANN, split(3, 1)))
    assert refused is not None and refused.kind == "busy"
    sizes = dict(models.Pool.objects.values_list("role", "desired_engines"))
    assert sizes == {"prefill": 1, "decode": 3}
    kept = AppliedState.objects.get().document["models"]["m"]
    assert {role: kept[f"pools.{role}.engines"] for role in sizes} == sizes, "what is kept is what was applied"


@pytest.mark.parametrize("first", [True, False])
def test_an_apply_beside_another_change_is_before_it_or_after_it(first: bool) -> None:
    fleet("disaggregated", prefill=2, decode=2)
    both = [lambda: apply_state(ANN, split(1, 3)), lambda: actions.set_mode(ANN, "m", "monolithic")]
    refused = at_once(*(both if first else reversed(both)))
    assert refused is not None and refused.kind == "busy"
    sizes = {role: size for role, size in models.Pool.objects.values_list("role", "desired_engines") if size}
    assert sizes == ({"prefill": 1, "decode": 3} if first else {"mixed": 4})


def test_a_process_that_dies_before_the_end_leaves_nothing() -> None:
    fleet("disaggregated", prefill=2, decode=2)
    before = document.export()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        apply_state(ANN, split(1, 3))
        raise ZeroDivisionError
    assert document.export() == before and not AppliedState.objects.exists()
    assert not models.Operation.objects.filter(verb="apply_model").exists()

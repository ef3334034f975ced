"""What a document changes, and what it leaves as somebody made it by hand."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.threeway import Decision, covers, decide

S = "models"


def decided(wanted: Any, now: Any, last: Any = ..., take: str = "-") -> Decision:
    """Of one item `m`; `...` stands for none, None for one that shall not be."""
    documents = [{} if value is ... else {S: {"m": value}} for value in (wanted, now, last)]
    return decide(*documents, lambda path: covers(take, path))


@pytest.mark.parametrize(
    ("wanted", "now", "last", "edits", "drifts"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ..., [], []),
        ({"a": 1}, {"a": 2}, ..., [("change", {"a": (2, 1)})], []),
        ({"a": 1}, {"a": 2}, {"a": 2}, [("change", {"a": (2, 1)})], []),
        ({"a": 1}, {"a": 2}, {"a": 1}, [], ["a"]),
        ({"a": 1}, {"a": 2}, {"a": 3}, [], ["a"]),
        ({"a": 1}, {"a": 1}, {"a": 3}, [], []),
        ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 1}, [("change", {"b": (2, 1)})], ["a"]),
        ({"a": 1}, ..., ..., [("create", {"a": (None, 1)})], []),
        ({"a": 1}, ..., None, [("create", {"a": (None, 1)})], []),
        ({"a": 1}, ..., {"a": 1}, [], [""]),
        (None, {"a": 1}, ..., [("remove", {})], []),
        (None, {"a": 2}, {"a": 1}, [("remove", {})], []),
        (None, {"a": 1}, None, [], [""]),
        (None, ..., {"a": 1}, [], []),
        ({"a": None}, {"a": 4}, ..., [("change", {"a": (4, None)})], []),
        ({"a": None}, {}, ..., [("change", {"a": (None, None)})], []),
        (..., {"a": 1}, {"a": 2}, [], []),
    ],
)
def test_each_field_follows_the_table(wanted: Any, now: Any, last: Any, edits: list[Any], drifts: list[str]) -> None:
    found = decided(wanted, now, last)
    assert [(edit.verb, dict(edit.fields)) for edit in found.edits] == edits
    assert [drift.field for drift in found.drifts] == drifts


@pytest.mark.parametrize("take", ["models[m].a", "models[m]", "models"])
def test_what_was_changed_by_hand_is_overwritten_where_it_is_taken(take: str) -> None:
    found = decided({"a": 1}, {"a": 2}, {"a": 1}, take)
    assert dict(found.edits[0].fields) == {"a": (2, 1)} and not found.drifts
    assert decided({"a": 1}, {"a": 2}, {"a": 1}, "models[m].ab").drifts


def test_drift_stays_drift_until_it_is_taken_or_the_document_agrees() -> None:
    first = decided({"a": 1}, {"a": 2}, {"a": 1})
    again = decide({S: {"m": {"a": 1}}}, {S: {"m": {"a": 2}}}, first.base, lambda _: False)
    assert again.drifts == first.drifts and not again.edits
    agreed = decide({S: {"m": {"a": 2}}}, {S: {"m": {"a": 2}}}, first.base, lambda _: False)
    assert not agreed.drifts and agreed.base == {S: {"m": {"a": 2}}}


def test_what_the_document_names_no_more_is_not_its_business_any_more() -> None:
    found = decide({}, {S: {"m": {"a": 1}}}, {S: {"m": {"a": 1}}}, lambda _: False)
    assert (found.edits, found.drifts, found.base) == ((), (), {})

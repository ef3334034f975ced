"""Hostile documents are refused by name, never with another error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from controlplane.core.codec import MAX_DEPTH, WrongShape, decode


@dataclass(frozen=True)
class Document:
    at: float = 0.0
    late: float | None = None
    seconds: tuple[float, ...] = ()
    free: Any = None
    named: Mapping[str, Any] | None = None


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"in": [value]} if levels % 2 else [value]
    return value


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"at": 10**400}, "at"),
        ({"late": -(10**400)}, "late"),
        ({"seconds": [1, 10**400]}, "seconds[1]"),
        ({"at": float("inf")}, "at"),
        ({"free": _nested(5000)}, "free"),
        ({"named": {"a": _nested(5001)}}, "named.a"),
    ],
)
def test_numbers_no_float_can_hold_and_bottomless_data_have_the_wrong_shape(document: dict[str, Any], path: str) -> None:
    with pytest.raises(WrongShape) as caught:
        decode(Document, document)
    assert caught.value.path == path


def test_free_form_data_of_a_sane_depth_is_kept_as_it_is() -> None:
    kept = _nested(MAX_DEPTH - 2)
    assert decode(Document, {"free": kept, "at": 3}) == Document(at=3.0, free=kept)

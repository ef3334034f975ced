"""How many of something, in words."""

from __future__ import annotations

import pytest

from controlplane.core.counts import some


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 GPUs"), (1, "1 GPU"), (1.2, "1 GPU"), (0.4, "0 GPUs"), (2, "2 GPUs"), (1024, "1,024 GPUs")]
)
def test_one_is_one_and_all_else_are_several(count: float, words: str) -> None:
    assert some(count, "GPU") == words

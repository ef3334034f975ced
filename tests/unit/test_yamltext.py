"""YAML is read as data and nothing else, and written so that it is read back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.common import yamltext
from controlplane.common.yamltext import BadYaml, read, write

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(
        ["", "~", "null", "yes", "on", "0o14", "012", "1_000", "1e3", ".5", "2026-11-30", "<<", "=", "- a", "#", "a: b"]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(VALUES)
@example(1e-06)
@example(5e-324)
@example(1e22)
def test_what_is_written_is_read_back_and_by_others_too(value: Any) -> None:
    text = write({"v": value})
    assert read(text) == {"v": value}
    assert type(read(text)["v"]) is type(value)
    yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes", {"a": "yes"}),
        ("a: 0x1f", {"a": "0x1f"}),
        ("a: 2026-11-30", {"a": "2026-11-30"}),
        ("a: 1e3\nb: -.5", {"a": 1000.0, "b": -0.5}),
        ("a: '1'", {"a": "1"}),
        ('{"a": [1, true, null]}', {"a": [1, True, None]}),
        ("a: |\n  x\n", {"a": "x\n"}),
    ],
)
def test_plain_words_mean_what_json_has(text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: !!python/object/apply:os.system ['true']", "tags are not taken"),
        ("a: !x 1", "tags are not taken"),
        ("a: &b 1", "anchors"),
        ("a: *b", "anchors"),
        ("a: &a [1]\nb: *a", "anchors"),
        ("a: 1\na: 2", r"comes twice \(line 2\)"),
        ("1: 2", "a name must be a text"),
        ("? [a]\n: 1", "a name must be a text"),
        ("a: 1\n---\nb: 2", "more than one document"),
        ("", "is empty"),
        ("a: [", "is no YAML"),
        ("a: \x00", "is no YAML"),
        ("a: 1e9999", "too large"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("{a: " * 100_000, "nested deeper"),
        ("x" * (yamltext.MAX_CHARS + 1), "longer than"),
    ],
)
def test_everything_else_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadYaml, match=why) as refused:
        read(text)
    assert "\n" not in str(refused.value)


def test_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamltext, "MAX_VALUES", 50)
    with pytest.raises(BadYaml, match="more than 50 values"):
        read("[" + "1, " * 60 + "]")

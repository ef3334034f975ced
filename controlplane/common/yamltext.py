"""YAML as data and nothing else: JSON's values, written so. No tags, anchors, aliases, merge keys, dates, octal numbers, or
yes for true; a bounded size, depth and number of values; read without recursion.

What is read here is what `write` writes: a text that another reader would take for a number or a date is quoted.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

MAX_CHARS = 2 << 20
MAX_DEPTH = 32
MAX_VALUES = 200_000
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(r"[-+]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,4})?")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MISSING = object()


class BadYaml(ValueError):
    """It is no YAML that is taken here; the message says where and why, and repeats none of it."""


def read(text: str) -> Any:
    """The one document in `text`. Raises BadYaml."""
    if len(text) > MAX_CHARS:
        raise BadYaml(f"longer than {MAX_CHARS} characters")
    try:
        return _build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise BadYaml(f"is no YAML: {error.problem}" + (f" (line {mark.line + 1})" if mark else "")) from None
    except yaml.YAMLError:
        raise BadYaml("is no YAML: a character that may not stand in it") from None


class _Open:
    """A mapping or list that has not ended."""

    def __init__(self, value: dict[str, Any] | list[Any]) -> None:
        self.value = value
        self.key: Any = _MISSING

    def add(self, value: Any, event: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is _MISSING:
            if not isinstance(value, str):
                raise BadYaml(f"a name must be a text{_at(event)}: put it in quotes")
            if value in self.value:
                raise BadYaml(f"a name comes twice{_at(event)}")
            self.key = value
        else:
            self.value[self.key] = value
            self.key = _MISSING


def _build(text: str) -> Any:
    left, documents = MAX_VALUES, 0
    roots: list[Any] = []
    stack = [_Open(roots)]
    for event in yaml.parse(text, Loader=_READER):
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise BadYaml(f"anchors and aliases are not taken{_at(event)}")
        if getattr(event, "tag", None):
            raise BadYaml(f"tags are not taken{_at(event)}")
        documents += isinstance(event, DocumentStartEvent)
        if documents > 1:
            raise BadYaml(f"holds more than one document{_at(event)}")
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            if len(stack) > MAX_DEPTH:
                raise BadYaml(f"is nested deeper than {MAX_DEPTH} levels{_at(event)}")
            stack.append(_Open({} if isinstance(event, MappingStartEvent) else []))
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            ended = stack.pop()
            stack[-1].add(ended.value, event)
        elif isinstance(event, ScalarEvent):
            value = event.value if event.style else scalar(event.value)
            stack[-1].add(value, event)
        left -= 1
        if left < 0:
            raise BadYaml(f"holds more than {MAX_VALUES} values")
    if not roots:
        raise BadYaml("is empty")
    return roots[0]


def _at(event: Any) -> str:
    mark = getattr(event, "start_mark", None)
    return f" (line {mark.line + 1})" if mark else ""


def scalar(text: str) -> Any:
    """What a plain word means. Raises BadYaml for a number that is none here."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise BadYaml("holds a number that is too large")
        return number
    return text


class _Writer(yaml.SafeDumper):
    """Quotes whatever `scalar` would not read as the same text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: yaml.SafeDumper, text: str) -> Any:
    quoted = "'" if scalar(text) != text or not isinstance(scalar(text), str) else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=quoted)


def _number(writer: yaml.SafeDumper, number: float) -> Any:
    text = repr(number)
    if "." not in text:  # 1e-06: YAML 1.1 takes a number without a point for a text
        text = text.replace("e", ".0e")
    return writer.represent_scalar("tag:yaml.org,2002:float", text)


_Writer.add_representer(str, _text)
_Writer.add_representer(float, _number)


def write(value: Any) -> str:
    """A JSON value as YAML that `read` reads back; names keep their order."""
    return str(yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120))

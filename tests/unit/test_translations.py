"""Vietnamese is complete: every text of the sources is in the catalogue, translated, and in the compiled file."""

from __future__ import annotations

import re
from pathlib import Path

import polib
import pytest

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = ROOT / "controlplane" / "locale" / "vi" / "LC_MESSAGES"
STRING = r'"((?:[^"\\\n]|\\.)*)"'
PLACE = re.compile(r"%\((\w+)\)[sd]")


def _found(pattern: str, *globs: str) -> set[str]:
    files = [path for glob in globs for path in ROOT.glob(glob)]
    assert files
    return {text for path in files for text in re.findall(pattern, path.read_text(encoding="utf-8"))}


def _source_texts(domain: str) -> set[str]:
    if domain == "djangojs":
        return _found(rf"\bn?gettext\(\s*{STRING}", "static/js/*.js")
    python = _found(rf"\b(?:gettext|gettext_lazy|_)\(\s*{STRING}", "controlplane/**/*.py")
    marks = r"""\{%\s*translate\s+(?:"([^"]*)"|'([^']*)')"""
    return python | {one or other for one, other in _found(marks, "templates/**/*.html")}


def _catalogue(domain: str) -> polib.POFile:
    return polib.pofile(str(CATALOGUES / f"{domain}.po"))


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_every_text_of_the_sources_is_translated(domain: str) -> None:
    catalogue = _catalogue(domain)
    translated = {entry.msgid for entry in catalogue.translated_entries()}
    assert _source_texts(domain) - translated == set()
    assert [entry.msgid for entry in catalogue if not entry.translated() or entry.fuzzy] == []


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_the_catalogue_holds_no_text_that_the_sources_lost(domain: str) -> None:
    assert {entry.msgid for entry in _catalogue(domain)} - _source_texts(domain) == set()


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_translations_keep_the_places_for_values(domain: str) -> None:
    for entry in _catalogue(domain):
        for translation in [entry.msgstr] if entry.msgstr else entry.msgstr_plural.values():
            assert set(PLACE.findall(translation)) == set(PLACE.findall(entry.msgid)), entry.msgid


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_the_compiled_catalogue_is_in_step(domain: str) -> None:
    compiled = polib.mofile(str(CATALOGUES / f"{domain}.mo"))

    def meaning(entries: polib.POFile | polib.MOFile) -> dict[str, object]:
        return {entry.msgid: entry.msgstr or entry.msgstr_plural for entry in entries}

    assert meaning(compiled) == meaning(_catalogue(domain))
    assert compiled.metadata["Plural-Forms"] == "nplurals=1; plural=0;"

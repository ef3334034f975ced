"""What each page's script imports, told ahead so that the browser fetches all at once instead of level by level."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from django.contrib.staticfiles import finders

_IMPORT = re.compile(r'^(?:import|export)\b[^;]*? from "\./(\w+)\.js"', re.MULTILINE)


@cache
def module_files(page: str) -> tuple[str, ...]:
    """Static names of every module that js/<page>.js imports at its start, itself left out. Read once per process."""
    return tuple(f"js/{name}.js" for name in sorted(set(_imported(page, set())) - {page}))


def _imported(name: str, seen: set[str]) -> Iterator[str]:
    if name in seen:
        return
    seen.add(name)
    yield name
    path = finders.find(f"js/{name}.js")
    if isinstance(path, str):
        with open(path, encoding="utf-8") as file:
            for other in _IMPORT.findall(file.read()):
                yield from _imported(other, seen)

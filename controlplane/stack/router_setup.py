"""Compiles the router's modules; `manage.py compile-router` runs this file in a copy of the source that it may change.

    python router_setup.py LEVEL FILE …

LEVEL is the C compiler's (0 to 3). The extension modules are put beside the files.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

_FUTURE = "from __future__ import annotations\n"
_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]+)(?:: (.+?))? = (?!TypeVar)", re.MULTILINE)


def prepare(source: str) -> str:
    """Without `slots=True`, which makes a second class of each: compiled classes have fixed places for fields anyway. And a
    module's constants are final: they are not looked up by name then."""
    source = source.replace("@dataclass(slots=True)", "@dataclass").replace(", slots=True)\n", ")\n")
    source = source.replace(_FUTURE, f"{_FUTURE}from typing import Final\n", 1)
    return _CONSTANT.sub(lambda found: f"{found[1]}: Final[{found[2]}] = " if found[2] else f"{found[1]}: Final = ", source)


def main(level: str, files: list[str]) -> None:
    for file in map(Path, files):
        file.write_text(prepare(file.read_text()))
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    extensions = mypycify([*options, *files], opt_level=level, debug_level="0")
    for extension in extensions:
        extension.extra_compile_args.append("-Wno-error")  # other compilers than mypyc's authors have warn of other things
    workers = str(len(os.sched_getaffinity(0)))
    setup(name="twinpool-router", packages=[], ext_modules=extensions, script_args=["build_ext", "--inplace", "-j", workers])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Static files, a third of their size on the way: whitenoise sends a gzip copy to whoever takes one."""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile

KINDS = (".js", ".css", ".svg")


class SmallStaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # it has no types
    """The copies are made when a process first starts with a file, in the state folder; where there is none, or it cannot be
    written, files are sent as they are."""

    def get_static_file(self, path: str, url: str, stat_cache: Any = None) -> Any:
        found = super().get_static_file(path, url, stat_cache)
        copy = gzipped(Path(path), settings.STATIC_COPIES) if path.endswith(KINDS) else None
        if copy is None:
            return found
        _, _, headers = found.alternatives[0]
        return StaticFile(path, headers, encodings={"gzip": str(copy)})


def gzipped(file: Path, folder: Path) -> Path | None:
    """A copy of this version of the file, named by its time, so that a process that runs goes on with what it started with.
    None if there can be none. The folder may be emptied at any time between two starts."""
    if not folder.parent.is_dir():
        return None
    try:
        copy = folder / f"{'+'.join(file.parts[-3:])}.{file.stat().st_mtime_ns}.gz"
        if not copy.exists():
            folder.mkdir(exist_ok=True)
            _write(copy, gzip.compress(file.read_bytes(), mtime=0))
    except OSError:
        return None
    return copy


def _write(copy: Path, content: bytes) -> None:
    """At once, because several processes may start together."""
    handle, new = tempfile.mkstemp(dir=copy.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(new, copy)

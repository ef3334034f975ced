"""Static files that come out of installed wheels, so that nothing large is committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

# served name -> (package, file inside it)
SWAGGER = "static/drf_spectacular_sidecar/swagger-ui-dist"
WHEEL_FILES = {
    "vendor/plotly.min.js": ("plotly", "package_data/plotly.min.js"),
    "vendor/swagger-ui-bundle.js": ("drf_spectacular_sidecar", f"{SWAGGER}/swagger-ui-bundle.js"),
    "vendor/swagger-ui.css": ("drf_spectacular_sidecar", f"{SWAGGER}/swagger-ui.css"),
}


def _location(package: str, file: str) -> Path | None:
    """Where the wheel put the file; found without importing the package. None when it is not installed."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    return None


class WheelFile(FileSystemStorage):
    """A storage that holds exactly one file of a wheel under the name we serve it by."""

    def __init__(self, path: Path) -> None:
        super().__init__(location=path.parent)
        self.file_path = path

    def path(self, name: str) -> str:
        return str(self.file_path)


class WheelFilesFinder(BaseFinder):
    """Finds the files of WHEEL_FILES, and nothing else of their packages."""

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """The absolute path of `path`; with `find_all` a list. Empty list when it is none of ours."""
        wanted = WHEEL_FILES.get(path)
        found = _location(*wanted) if wanted else None
        if find_all or kwargs.get("all"):
            return [str(found)] if found else []
        return str(found) if found else []

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, WheelFile]]:
        """(served name, storage) of every file."""
        for name, (package, file) in WHEEL_FILES.items():
            if (found := _location(package, file)) is not None:
                yield name, WheelFile(found)

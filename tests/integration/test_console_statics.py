"""Static files are sent compressed to whoever takes that, and as they are to others."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from controlplane.console.statics import gzipped

FILE = "/static/css/console.css"
PLAIN = (Path(__file__).resolve().parents[2] / "static" / "css" / "console.css").read_bytes()


def body(client: Client, **headers: str) -> tuple[bytes, str | None]:
    answer = client.get(FILE, headers=headers)
    return b"".join(answer.streaming_content), answer.headers.get("content-encoding")  # type: ignore[attr-defined]


def test_a_browser_gets_a_copy_that_is_smaller_and_says_the_same(settings: LazySettings, tmp_path: Path) -> None:
    settings.STATIC_COPIES = tmp_path / "static"
    small, encoding = body(client := Client(), **{"accept-encoding": "gzip, br"})
    assert encoding == "gzip" and len(small) < len(PLAIN) / 2
    assert gzip.decompress(small) == PLAIN
    assert body(client, **{"accept-encoding": "identity"}) == (PLAIN, None)


@pytest.mark.parametrize("folder", ["no/such", "file/static"])
def test_without_a_folder_for_copies_files_are_sent_as_they_are(settings: LazySettings, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    settings.STATIC_COPIES = tmp_path / folder
    assert body(Client(), **{"accept-encoding": "gzip"}) == (PLAIN, None)
    assert not (tmp_path / "no").exists()


def test_a_file_that_changes_has_another_copy_and_the_old_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.js"
    file.write_text("old")
    old = gzipped(file, tmp_path / "static")
    file.write_text("new")
    os.utime(file, ns=(1, 1))
    new = gzipped(file, tmp_path / "static")
    assert old and new
    assert [gzip.decompress(each.read_bytes()) for each in (old, new)] == [b"old", b"new"]

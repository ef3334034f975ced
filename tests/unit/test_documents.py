"""Files that somebody names for a command may be anything, also what never ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from controlplane.common.files import MAX_DOCUMENT_BYTES, BadKey, open_document, read_document, read_key
from controlplane.core.forecast import ForecastRefused
from controlplane.core.modelconfig import ConfigRefused
from controlplane.physics.catalog import read_config
from controlplane.physics.enginemetrics import BadMetrics
from controlplane.physics.forecastoptions import _calibration
from controlplane.physics.scraping import read_pages
from controlplane.physics.traces import TraceRefused, read_trace

ENDLESS = Path("/dev/zero")


def test_a_document_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "document"
    file.write_bytes(b" " * MAX_DOCUMENT_BYTES)
    assert len(read_document(file)) == MAX_DOCUMENT_BYTES
    file.write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(OSError, match="more than"):
        read_document(file)


def test_a_config_a_calibration_and_a_metrics_page_without_an_end_are_refused() -> None:
    with pytest.raises(ConfigRefused, match=r"'/dev/zero': it has more than 16,777,216 bytes; give a file or one of"):
        read_config(str(ENDLESS))
    with pytest.raises(ForecastRefused, match="more than 16,777,216 bytes"):
        _calibration(ENDLESS)
    with pytest.raises(BadMetrics, match="more than 16,777,216 bytes"):
        read_pages([ENDLESS])


def test_nobody_waits_for_a_named_pipe_that_has_no_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(OSError, match="nobody writes to this pipe"):
        read_document(pipe)
    with pytest.raises(TraceRefused, match="it is empty"):
        read_trace(pipe)
    with pytest.raises(BadKey, match="has 0 bytes"):
        read_key(pipe, "key")


def test_a_pipe_with_a_slow_writer_is_read_to_its_end() -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "sleep 0.1; echo first; sleep 0.1; echo last"], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert read_document(Path(f"/dev/fd/{writer.stdout.fileno()}")) == "first\nlast\n"


def test_a_folder_is_refused_and_leaves_no_file_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IsADirectoryError):
        open_document(tmp_path)
    assert os.listdir("/proc/self/fd") == before

"""Files that somebody names for a command may be anything, also what never ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.common.files import MAX_DOCUMENT_BYTES, read_document
from controlplane.core.forecast import ForecastRefused
from controlplane.core.modelconfig import ConfigRefused
from controlplane.physics.catalog import read_config
from controlplane.physics.enginemetrics import BadMetrics
from controlplane.physics.forecastoptions import _calibration
from controlplane.physics.scraping import read_pages

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

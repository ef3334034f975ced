"""The planner's values as JSON columns keep them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from controlplane.core.codec import encode


def plain(value: Any) -> Any:
    """A dataclass (or a container of them) for a JSON column: what is infinite or no number is null."""
    return _finite(encode(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def moment(at_s: float) -> datetime:
    """Unix seconds as columns have them."""
    return datetime.fromtimestamp(at_s, UTC)

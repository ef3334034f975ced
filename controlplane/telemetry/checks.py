"""System checks of what live pages stand on."""

from __future__ import annotations

from typing import Any

from channels.layers import get_channel_layer
from django.core.checks import CheckMessage, Error


def channel_layer_is_configured(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """`get_channel_layer()` answers None for a missing layer, and pages would silently fall back to their slow poll."""
    if get_channel_layer() is not None:
        return []
    return [
        Error(
            "No channel layer is configured, so nothing can tell the pages that live rows changed.",
            hint="Set CHANNEL_LAYERS['default'] (controlplane.settings takes its server from TWINPOOL_VALKEY_URL).",
            id="telemetry.E001",
        )
    ]

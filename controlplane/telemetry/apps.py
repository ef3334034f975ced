from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class TelemetryConfig(AppConfig):
    name = "controlplane.telemetry"

    def ready(self) -> None:
        from controlplane.telemetry.checks import channel_layer_is_configured

        checks.register(channel_layer_is_configured)

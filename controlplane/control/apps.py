from __future__ import annotations

from django.apps import AppConfig


class ControlConfig(AppConfig):
    name = "controlplane.control"
    label = "control"

    def ready(self) -> None:
        from controlplane.control.auditing.events import listen  # models must be loaded first
        from controlplane.control.planning.live import live_proposals
        from controlplane.telemetry.sources import tell_proposals

        listen()
        tell_proposals(live_proposals)

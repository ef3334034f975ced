from __future__ import annotations

from django.apps import AppConfig


class ControlConfig(AppConfig):
    name = "controlplane.control"
    label = "control"

    def ready(self) -> None:
        from controlplane.control.auditing.events import listen  # models must be loaded first

        listen()

from __future__ import annotations

from django.apps import AppConfig


class PhysicsConfig(AppConfig):
    name = "controlplane.physics"
    label = "physics"

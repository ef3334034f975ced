"""The console's Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "controlplane.console"
    label = "console"

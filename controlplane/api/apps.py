"""The REST API's Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "controlplane.api"
    label = "api"

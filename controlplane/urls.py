"""Addresses of the control plane's web process."""

from __future__ import annotations

from django.urls import include, path

from controlplane.console.views import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("", include("controlplane.console.urls")),
]

"""Addresses of the control plane's web process."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.defaults import server_error

from controlplane import web_metrics
from controlplane.api.gate import PREFIX
from controlplane.api.problems import broken
from controlplane.console.views import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("metrics", web_metrics.metrics, name="metrics"),
    path("metrics/engines", web_metrics.engines, name="metrics_engines"),
    path("api/", include("controlplane.api.urls")),
    path("", include("controlplane.console.urls")),
]


def handler500(request: HttpRequest) -> HttpResponse:
    """A program is told in its own language that something went wrong."""
    return broken(request) if request.path.startswith(PREFIX) else server_error(request)

"""Addresses of the console's pages."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.i18n import JavaScriptCatalog, set_language

from controlplane.console import history, views

urlpatterns = [
    path("", views.fleet, name="fleet"),
    path("history/gpus", history.gpus, name="history_gpus"),
    path("login", views.Login.as_view(), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
    path("language", set_language, name="set_language"),
    path("strings.js", never_cache(JavaScriptCatalog.as_view(packages=["controlplane.console"])), name="strings"),
]

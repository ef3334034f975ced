"""The web process: pages and the REST API over HTTP, live topics over a socket."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django

django.setup(set_prefix=False)

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator, WebsocketDenier
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import path, re_path

from controlplane.api.gate import Gate
from controlplane.handler import OneThread
from controlplane.live.socket import live, nowhere
from controlplane.telemetry.checks import channel_layer_is_configured
from controlplane.web_metrics import Timed

# The server does not run system checks; without a channel layer pages would only seem to be live.
for problem in channel_layer_is_configured():
    raise ImproperlyConfigured(f"{problem.msg} {problem.hint}")
if not settings.SECRET_KEY_FILE.is_file():
    raise ImproperlyConfigured(
        f"There is no secret to sign sessions with in {settings.SECRET_KEY_FILE}: set TWINPOOL_DJANGO_SECRET_FILE to a file "
        "with at least 50 random characters, or TWINPOOL_STATE to the folder that `manage.py up` made."
    )

live_view: Any = live  # Django's types know no ASGI applications behind a path
nowhere_view: Any = nowhere


class OwnOrigins(OriginValidator):  # type: ignore[misc]
    """A page of another site could open a socket with the user's cookie: only pages of our own origins may."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if all(_is_url(value) for name, value in scope.get("headers", ()) if name == b"origin"):
            return await super().__call__(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def _is_url(origin: bytes) -> bool:
    """The validator itself raises for what is none, such as a port that is no number."""
    try:
        return urlsplit(origin.decode("latin1")).port != 0
    except ValueError:
        return False


application = ProtocolTypeRouter(
    {
        "http": Timed(Gate(OneThread())),
        "websocket": OwnOrigins(
            AuthMiddlewareStack(URLRouter([path("ws/live", live_view), re_path(r"", nowhere_view)])),
            settings.CSRF_TRUSTED_ORIGINS,
        ),
    }
)

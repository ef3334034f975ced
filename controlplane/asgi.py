"""The web process: pages over HTTP, live topics over a socket."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import path, re_path

from controlplane.live.socket import live, nowhere
from controlplane.telemetry.checks import channel_layer_is_configured

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

# A page of another site could open a socket with the user's cookie: only pages of our own origins may.
application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": OriginValidator(
            AuthMiddlewareStack(URLRouter([path("ws/live", live_view), re_path(r"", nowhere_view)])),
            settings.CSRF_TRUSTED_ORIGINS,
        ),
    }
)

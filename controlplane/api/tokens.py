"""Who asks: a program with a token, or a browser that is signed in."""

from __future__ import annotations

from typing import Any

from knox.auth import TokenAuthentication
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed


class Bearer(TokenAuthentication):  # type: ignore[misc]
    """`Authorization: Bearer TOKEN`."""

    def authenticate_credentials(self, token: bytes) -> tuple[Any, Any]:
        if not token.isascii() or b"\x00" in token:
            raise AuthenticationFailed("Invalid token.")
        found: tuple[Any, Any] = super().authenticate_credentials(token)
        return found


class Session(SessionAuthentication):
    """The console's cookie. A change needs the CSRF token too, in the header `X-CSRFToken`."""

"""Who asks: a program with a token, or a browser that is signed in."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.access.scopes import READ, SECRETS, WRITE
from controlplane.access.sessions import proved_lately
from controlplane.access.tokens import note_use
from controlplane.api.models import ApiToken


class Bearer(TokenAuthentication):  # type: ignore[misc]
    """`Authorization: Bearer TOKEN`. One query: the digest, which nobody can make a token for, is the row's key."""

    def authenticate_credentials(self, token: bytes) -> tuple[Any, Any]:
        row = ApiToken.objects.select_related("user").filter(digest=_digest(token)).first()
        now = timezone.now()
        if row is not None and row.expiry is not None and row.expiry <= now:
            row.delete()  # its name is free again
            row = None
        if row is None:
            raise AuthenticationFailed("Invalid token.")
        found: tuple[Any, Any] = self.validate_user(row)
        note_use(row, now)
        return found


def _digest(token: bytes) -> str:
    """ "" for what can be no token."""
    return str(hash_token(token.decode())) if token.isascii() and b"\x00" not in token else ""


class Session(SessionAuthentication):
    """The console's cookie. A change needs the CSRF token too, in the header `X-CSRFToken`."""


class InScope(BasePermission):
    """A token is good only for what its scopes say; a view that is about secrets has a `scope` of its own for changes."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.auth, ApiToken):
            return True
        needed = READ if request.method in SAFE_METHODS else getattr(view, "scope", WRITE)
        self.message = f"this token has not the scope {needed}; it has {', '.join(request.auth.scopes)}"
        return needed in request.auth.scopes


class Proved(BasePermission):
    """A session makes secrets, which outlive it, only shortly after its user has shown who they are; tokens have a scope
    for that. What is made is a POST, what is revoked a DELETE."""

    message = "you signed in some time ago: sign in again, or make it on the console's page, which asks your password"

    def has_permission(self, request: Request, view: Any) -> bool:
        if isinstance(request.auth, ApiToken) or request.method != "POST" or getattr(view, "scope", WRITE) != SECRETS:
            return True
        return proved_lately(request._request.session)

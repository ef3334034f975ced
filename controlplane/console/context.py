"""What every page of the console needs: the viewer's theme and role."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext

from controlplane.access.who import actor_once
from controlplane.alerts.selectors import loud_now
from controlplane.control.actor import RANK, Role
from controlplane.control.planning.selectors import open_count

THEME_COOKIE = "theme"
THEMES = ("dark", "light")


def theme(request: HttpRequest) -> str:
    """`dark` or `light` if the viewer chose one, else "" (the system decides). Kept in a cookie so that no page flashes."""
    chosen = request.COOKIES.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


def role(user: User | AnonymousUser) -> str:
    """The strongest role of a user as a word to show; "" for a visitor who is not signed in."""
    if not user.is_authenticated:
        return ""
    words: dict[Role, str] = {
        "admin": gettext("admin"),
        "operator": gettext("operator"),
        "owner": gettext("owner"),
        "viewer": gettext("viewer"),
    }
    return words[actor_once(user).role]


def read_only(user: User | AnonymousUser) -> bool:
    """Whether a signed-in user may change nothing anywhere, whoever owns it."""
    return user.is_authenticated and RANK[actor_once(user).role] == RANK["viewer"]


def console(request: HttpRequest) -> dict[str, Any]:
    """Template context processor. The role is looked up only by a page that shows it."""
    user = getattr(request, "user", AnonymousUser())
    return {
        "theme": theme(request),
        "role": SimpleLazyObject(lambda: role(user)),
        "read_only": SimpleLazyObject(lambda: read_only(user)),
        "loud": SimpleLazyObject(loud_now),
        "asked": SimpleLazyObject(lambda: open_count() if user.is_authenticated else 0),
    }

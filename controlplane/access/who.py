"""Who asks, read once per request however often somebody wants to know: the session, pages and the API ask the same object.

Kept with the user object, which is the request's own: the next request reads anew.
"""

from __future__ import annotations

from typing import Any

from controlplane.control.actor import Actor

_KEPT = "_actor_of_this_request"


def actor_of(request: Any) -> Actor:
    """Whose request this is; they are signed in."""
    return actor_once(request.user)


def actor_once(user: Any) -> Actor:
    """`Actor.of_user`, asked once of this object. Not for whoever changes roles, teams or grants of the user meanwhile."""
    found: Actor | None = getattr(user, _KEPT, None)
    if found is None:
        found = Actor.of_user(user)
        setattr(user, _KEPT, found)
    return found

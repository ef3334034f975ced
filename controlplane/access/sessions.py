"""Sessions of the console: when one begins, how long it lasts, and whether it may still act as its user."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user, login
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.utils import timezone

from controlplane.access import factors

STARTED, SEEN, FACTOR, PROVED = "started", "seen", "second_factor", "proved"
SWEPT = 200
NOTED_EVERY_S = 60
"""So often at most a session's last use is written."""
PROVED_FOR_S = 900
"""So long after somebody has signed in, or shown again who they are, they may make what outlives their session."""


def begin(request: HttpRequest, user: User, *, factor: bool) -> None:
    """Sign in, under a new session key. `factor`: a second factor was shown. The caller has checked who it is."""
    _sweep()
    login(request, user, backend=settings.SIGNED_IN_BACKEND)
    now = int(time.time())
    request.session.update({STARTED: now, SEEN: now, PROVED: now, FACTOR: factor})
    request.session.set_expiry(_left_s(now, now))


def prove(session: Any) -> None:
    """Its user has shown anew who they are. It goes on under a new key: whoever else had the old one is out."""
    session.cycle_key()
    session[PROVED] = int(time.time())


def proved_lately(session: Any) -> bool:
    """Whether its user has shown who they are so shortly ago that nobody else can well have it by now."""
    at: float = session.get(PROVED, 0)
    return 0 <= time.time() - at <= PROVED_FOR_S


def touch(session: Any, now: float) -> None:
    """A person did something: the session's idle time begins anew, its end stays."""
    if now - session.get(SEEN, 0) < NOTED_EVERY_S:
        return
    session[SEEN] = int(now)
    session.set_expiry(_left_s(session.setdefault(STARTED, int(now)), now))


def user_of(session: Any) -> User | AnonymousUser:
    """Who is signed in with a session as the store has it now."""
    request = HttpRequest()
    request.session = session
    return allowed(get_user(request), session)


def allowed(user: User | AnonymousUser, session: Any) -> User | AnonymousUser:
    """The user, or nobody if the session is too old or lacks the second factor that the user needs by now."""
    if not isinstance(user, User):
        return user
    over = time.time() - session.get(STARTED, time.time()) > settings.SESSION_ABSOLUTE_S
    if over or not (session.get(FACTOR) or not factors.required(user)):
        return AnonymousUser()
    return user


def stored(session_key: str | None) -> Any:
    return import_module(settings.SESSION_ENGINE).SessionStore(session_key)


def end_all(user: User, but: str | None = None) -> int:
    """End every session of a user (except one); how many."""
    ended = 0
    for row in Session.objects.iterator(chunk_size=500):
        if row.session_key != but and row.get_decoded().get(SESSION_KEY) == str(user.pk):
            row.delete()
            ended += 1
    return ended


def _sweep() -> None:
    """Clears away what is over, also of visitors who never came in: a bounded part with each sign-in."""
    over = Session.objects.filter(expire_date__lt=timezone.now()).values_list("pk", flat=True)[:SWEPT]
    Session.objects.filter(pk__in=list(over)).delete()


def _left_s(started: float, now: float) -> int:
    """Until a session ends if nobody uses it."""
    return int(max(1, min(settings.SESSION_IDLE_S, started + settings.SESSION_ABSOLUTE_S - now)))

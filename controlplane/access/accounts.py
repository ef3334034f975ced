"""Accounts of people: made, changed, let in again. One function per verb, each one transaction with operation and audit.

Passwords are given by whoever calls and never kept in the clear.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any

from axes.utils import reset as forget_failures
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from controlplane.access import factors, sessions
from controlplane.access.models import Identity, SecondFactor
from controlplane.access.tokens import user_named
from controlplane.control.actions import forbid, record_change
from controlplane.control.actor import GROUPS, Actor
from controlplane.control.refused import Refused
from controlplane.fleet.models import Operation, Team

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,149}")
PASSWORD_BYTES = 18


def add_account(
    actor: Actor, name: str, role: str, *, teams: Collection[str] = (), password: str = "", reason: str = ""
) -> tuple[Operation, str]:
    """Returns the operation and the password: the given one, or a new one that nobody can read again."""
    forbid(actor, "add_account")
    if not NAME.fullmatch(name):
        raise Refused("invalid", f"user {name!r:.80}: letters, digits and @.+-_, at most 150, a letter or digit first")
    chosen = password or secrets.token_urlsafe(PASSWORD_BYTES)
    _check_password(chosen, User(username=name))
    with transaction.atomic():
        try:
            with transaction.atomic():
                user = User.objects.create_user(name, password=chosen)
        except IntegrityError as error:
            raise Refused("invalid", f"there is a user {name} already") from error
        put_in(user, role, teams)
        after = {"role": role, "teams": sorted(teams)}
        return record_change("add_account", actor, reason, f"user:{name}", after=after, done=True), chosen


def set_account(
    actor: Actor,
    name: str,
    *,
    role: str | None = None,
    teams: Collection[str] | None = None,
    active: bool | None = None,
    reason: str = "",
) -> Operation:
    """Change role, teams or whether somebody may come in; None: as it is. Who may not come in any more has no session left,
    and tokens are good for nothing."""
    forbid(actor, "set_account")
    with transaction.atomic():
        user = user_named(name, lock=True)
        before = _told(user)
        put_in(user, role or str(before["role"]), before["teams"] if teams is None else teams)
        if active is not None and active != user.is_active:
            user.is_active = active
            user.save(update_fields=["is_active"])
        _keep_an_admin()
        if active is False:
            sessions.end_all(user)
        after = _told(User.objects.get(pk=user.pk))
        return record_change("set_account", actor, reason, f"user:{name}", before=before, after=after, done=True)


def reset_password(actor: Actor, name: str, *, password: str = "", reason: str = "") -> tuple[Operation, str]:
    """Give somebody a new password; their sessions end. Returns it as `add_account` does."""
    forbid(actor, "reset_password")
    chosen = password or secrets.token_urlsafe(PASSWORD_BYTES)
    with transaction.atomic():
        user = user_named(name, lock=True)
        _check_password(chosen, user)
        user.set_password(chosen)
        user.save(update_fields=["password"])
        forget_failures(username=name)
        return record_change("reset_password", actor, reason, f"user:{name}", done=True), chosen


def unlock_account(actor: Actor, name: str, *, reason: str = "") -> Operation:
    """Forget wrong passwords and codes: they may try again at once."""
    forbid(actor, "unlock_account")
    with transaction.atomic():
        user = user_named(name, lock=True)
        forgotten = forget_failures(username=name)
        factors.unlock(user)
        return record_change("unlock_account", actor, reason, f"user:{name}", after={"failures": forgotten}, done=True)


def reset_second_factor(actor: Actor, name: str, *, reason: str = "") -> int:
    """Take a second factor away, for who has lost it: they set up a new one. Their sessions end; how many."""
    forbid(actor, "remove_second_factor")
    with transaction.atomic():
        user = user_named(name, lock=True)
        factors.remove(actor, user, reason=reason)
        return sessions.end_all(user)


def end_sessions(actor: Actor, name: str, *, reason: str = "") -> Operation:
    """Sign somebody out everywhere. Tokens stay."""
    forbid(actor, "end_sessions")
    with transaction.atomic():
        ended = sessions.end_all(user_named(name, lock=True))
        return record_change("end_sessions", actor, reason, f"user:{name}", after={"sessions": ended}, done=True)


def link_identity(actor: Actor, name: str, issuer: str, subject: str, *, reason: str = "") -> Operation:
    """Whom the provider calls `subject` comes in as this user."""
    forbid(actor, "link_identity")
    with transaction.atomic():
        user = user_named(name, lock=True)
        try:
            with transaction.atomic():
                Identity.objects.create(user=user, issuer=issuer, subject=subject)
        except IntegrityError as error:
            raise Refused("invalid", "this identity is a user's already") from error
        after = {"issuer": issuer, "subject": subject}
        return record_change("link_identity", actor, reason, f"user:{name}", after=after, done=True)


def change_own_password(user: User, new: str) -> None:
    """The caller has checked the old one and the rules; every session with the old one ends."""
    actor = Actor.of_user(user)
    with transaction.atomic():
        user.set_password(new)
        user.save(update_fields=["password"])
        record_change("change_password", actor, "", f"user:{actor.name}", done=True)


def end_own_sessions(user: User, but: str | None) -> int:
    """Sign oneself out everywhere else; how many sessions ended."""
    name = user.get_username()
    with transaction.atomic():
        ended = sessions.end_all(user, but)
        record_change("end_sessions", Actor.of_user(user), "", f"user:{name}", after={"sessions": ended}, done=True)
    return ended


def put_in(user: User, role: str, teams: Collection[str]) -> None:
    """Give exactly this role and these teams. Raises Refused."""
    if role not in GROUPS:
        raise Refused("invalid", f"there is no role {role!r:.40}; roles: {', '.join(GROUPS)}")
    known = {team.name: team for team in Team.objects.filter(name__in=teams)}
    missing = sorted(set(teams) - set(known))
    if missing:
        raise Refused("invalid", *(f"there is no team {name!r:.80}" for name in missing))
    user.groups.remove(*user.groups.filter(name__in=GROUPS))
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    if user.is_superuser != (role == "admin"):
        user.is_superuser = user.is_staff = role == "admin"
        user.save(update_fields=["is_superuser", "is_staff"])
    user.teams.set(known.values())


def accounts() -> list[dict[str, Any]]:
    """Every account by name, without anything secret."""
    rows = User.objects.order_by("username").prefetch_related("groups", "teams", "identities")
    withs = set(SecondFactor.objects.values_list("user_id", flat=True))
    return [
        {
            "name": user.username,
            **_told(user),
            "second_factor": user.pk in withs,
            "provider": user.identities.exists(),
            "last_login": user.last_login.isoformat(timespec="seconds") if user.last_login else None,
        }
        for user in rows
    ]


def _told(user: User) -> dict[str, Any]:
    actor = Actor.of_user(user)
    return {"role": actor.role, "teams": sorted(actor.teams), "active": user.is_active}


def _keep_an_admin() -> None:
    if not any(Actor.of_user(user).role == "admin" for user in User.objects.filter(is_active=True)):
        raise Refused("invalid", "nobody would be an admin any more: make somebody else one first")


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Refused("invalid", *error.messages) from error

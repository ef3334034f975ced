"""What is noted of logins, refusals and secrets, each in one form. A name that was typed is kept only if it is a user's:
people type passwords into the wrong field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.db import Error as DatabaseError

from controlplane.control.auditing.notes import note
from controlplane.control.refused import Kind, Refused
from controlplane.core.storable import storable_text

NOBODY = "somebody"
TYPED: frozenset[Kind] = frozenset({"invalid", "not_found"})
"""Kinds of refusals whose reasons repeat what was typed: they are not kept."""


def address_of(request: Any) -> str:
    """Of who asks, as the server knows it; "" for none."""
    return str(request.META.get("REMOTE_ADDR", ""))[:64] if request is not None else ""


def note_refusal(actor: str, refused: Refused, asked: str, of: Mapping[str, Any] | None = None) -> None:
    """An order that was refused. `asked`: the kind of order ("PUT v1/models/<model:name>/mode"), never its values; `of`: the
    names that it was about, kept where they are known to exist or a role was too low."""
    after: dict[str, Any] = {"kind": refused.kind, "asked": asked[:200]}
    if refused.kind not in TYPED:
        after |= {"reasons": [reason[:300] for reason in refused.reasons[:5]]}
        after |= {"of": {name: str(value)[:128] for name, value in of.items()}} if of else {}
    note("refused", actor, f"refusal:{refused.kind}", after=after)


def note_bad_token(address: str) -> None:
    """Somebody came with a token of the API that is none, is over or was revoked."""
    note("login_failed", NOBODY, "token:unknown", source=address, after={"from": address})


def note_wrong_code(name: str, request: Any) -> None:
    """Somebody had a user's password, and no right code."""
    address = address_of(request)
    note("login_failed", name, f"user:{name}", source=address or name, after={"from": address, "step": "second factor"})


def note_bad_identity(request: Any, why: str) -> None:
    """An OpenID provider's word was not taken; `why` is of our own words."""
    address = address_of(request)
    note("login_failed", NOBODY, "identity:refused", source=address, after={"from": address, "why": why})


def note_secret(actor: str, subject: str) -> None:
    """A secret was shown to whoever asked; `subject` says which ("channel:pager", "node:gpu-1")."""
    note("secret_shown", actor, subject)


def _logged_in(sender: Any, request: Any = None, user: Any = None, **_: Any) -> None:
    name = user.get_username()
    note("login", name, f"user:{name}", after={"from": address_of(request)})


def _login_failed(sender: Any, credentials: Mapping[str, Any], request: Any = None, **_: Any) -> None:
    typed = storable_text(str(credentials.get("username") or ""))[:150]
    try:
        known = get_user_model().objects.filter(username=typed).exists()
    except DatabaseError:
        known = False
    name, address = typed if known else NOBODY, address_of(request)
    subject = f"user:{name}" if known else "user:unknown"
    note("login_failed", name, subject, source=address or name, after={"from": address})


def listen() -> None:
    """Hear of logins from now on, once however often it is called."""
    user_logged_in.connect(_logged_in, dispatch_uid="audit_login")
    user_login_failed.connect(_login_failed, dispatch_uid="audit_login_failed")

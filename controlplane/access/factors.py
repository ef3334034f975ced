"""The second factor: set up, asked for, replaced by recovery codes, taken away. Secrets are shown by whoever calls, once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from django_otp.oath import hotp

from controlplane.access.models import RecoveryCode, SecondFactor
from controlplane.access.sealing import BadSeal, seal, unseal
from controlplane.access.who import actor_once
from controlplane.control.actions import record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused

STEP_S = 30
DRIFT_STEPS = 1
"""So far may the clock of a phone be off, each way."""
KEY_BYTES = 20
RECOVERY_CODES = 10
_DIGITS = re.compile(r"[0-9]{6}")
_RECOVERY = re.compile(r"(?:RC)?([A-Z2-7]{16})")


@dataclass(frozen=True)
class Checked:
    """`wait_s`: no code is looked at before that, as too many were wrong. `broken`: only a reset helps."""

    ok: bool = False
    wait_s: int = 0
    broken: bool = False
    by_recovery: bool = False


def required(user: User) -> bool:
    """Whether this user may do nothing without one."""
    return settings.SECOND_FACTOR_FOR_ADMINS and actor_once(user).role == "admin"


def has_factor(user: User) -> bool:
    return bool(SecondFactor.objects.filter(user=user, confirmed=True).exists())


def new_secret() -> str:
    """A sealed secret that nobody has yet."""
    return seal(secrets.token_bytes(KEY_BYTES))


def shown_secret(sealed: str) -> str:
    """For people to type, in groups of four. Raises BadSeal."""
    text = base64.b32encode(unseal(sealed)).decode()
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def address_of(user: User, sealed: str) -> str:
    """What the QR code says (Google's key URI format). Raises BadSeal."""
    secret = base64.b32encode(unseal(sealed)).decode()
    label = quote(f"Twinpool:{user.get_username()}", safe=":@")
    return f"otpauth://totp/{label}?{urlencode({'secret': secret, 'issuer': 'Twinpool'})}"


def enrol(user: User, sealed: str, typed: str) -> list[str] | None:
    """Take this secret for the user's from now on, once a code proves that an app has it. Returns new recovery codes, or
    None for a wrong code. Raises Refused, BadSeal."""
    step = _step_of(unseal(sealed), typed, -1)
    if step is None:
        return None
    actor = Actor.of_user(user)
    with transaction.atomic():
        _, made = SecondFactor.objects.select_for_update().get_or_create(
            user=user, defaults={"name": "app", "sealed_key": sealed, "last_step": step}
        )
        if not made:
            raise Refused("invalid", "there is a second factor already: remove it first")
        codes = _new_codes(user)
        record_change("set_up_second_factor", actor, "", f"user:{actor.name}", done=True)
    return codes


def check(user: User, typed: str) -> Checked:
    """Look at a code of the app, or a recovery code. Each is good once. A wrong one makes everybody wait who knows this
    user's password, twice as long each time."""
    with transaction.atomic():
        row = SecondFactor.objects.select_for_update().filter(user=user, confirmed=True).first()
        if row is None:
            return Checked(broken=True)
        allowed, why = row.verify_is_allowed()
        if not allowed:
            return Checked(wait_s=max(1, round((why["locked_until"] - timezone.now()).total_seconds())))
        try:
            found = _accept(row, user, typed)
        except BadSeal:
            return Checked(broken=True)
        if found.ok:
            row.throttle_reset(commit=False)
        else:
            row.throttle_increment(commit=False)
        row.save()
    return found


def renew_codes(user: User) -> list[str]:
    """New recovery codes; the old ones are good no more."""
    actor = Actor.of_user(user)
    with transaction.atomic():
        if not SecondFactor.objects.select_for_update().filter(user=user).exists():
            raise Refused("invalid", "there is no second factor: set one up first")
        codes = _new_codes(user)
        record_change("renew_recovery_codes", actor, "", f"user:{actor.name}", done=True)
    return codes


def remove(actor: Actor, user: User, *, reason: str = "") -> None:
    """Forget the second factor, in the caller's transaction or one of its own."""
    with transaction.atomic():
        removed, _ = SecondFactor.objects.filter(user=user).delete()
        RecoveryCode.objects.filter(user=user).delete()
        if not removed:
            raise Refused("not_found", f"{user.get_username()} has no second factor")
        record_change("remove_second_factor", actor, reason, f"user:{user.get_username()}", done=True)


def unlock(user: User) -> None:
    """Forget how many codes were wrong."""
    SecondFactor.objects.filter(user=user).update(throttling_failure_count=0, throttling_failure_timestamp=None)


def codes_left(user: User) -> int:
    return RecoveryCode.objects.filter(user=user, used_at=None).count()


def _accept(row: SecondFactor, user: User, typed: str) -> Checked:
    step = _step_of(unseal(row.sealed_key), typed, row.last_step)
    if step is not None:
        row.last_step = step
        return Checked(ok=True)
    code = _RECOVERY.fullmatch(_normal(typed))
    if code is None:
        return Checked()
    unused = RecoveryCode.objects.filter(user=user, digest=_digest(user, code[1]), used_at=None)
    good = unused.update(used_at=timezone.now()) == 1
    return Checked(ok=good, by_recovery=good)


def _step_of(key: bytes, typed: str, after: int) -> int | None:
    """The time step that a code is of, if it is one of the present ones and later than `after`."""
    code = "".join(typed.split())
    if not _DIGITS.fullmatch(code):
        return None
    now = int(time.time()) // STEP_S
    for step in range(now - DRIFT_STEPS, now + DRIFT_STEPS + 1):
        if step > after and hmac.compare_digest(f"{hotp(key, step):06d}", code):
            return step
    return None


def _new_codes(user: User) -> list[str]:
    RecoveryCode.objects.filter(user=user).delete()
    codes = [base64.b32encode(secrets.token_bytes(KEY_BYTES // 2)).decode() for _ in range(RECOVERY_CODES)]
    RecoveryCode.objects.bulk_create(RecoveryCode(user=user, digest=_digest(user, code)) for code in codes)
    return ["rc-" + "-".join(code[at : at + 4] for at in range(0, len(code), 4)).lower() for code in codes]


def _normal(typed: str) -> str:
    return re.sub(r"[\s-]", "", typed).upper()


def _digest(user: User, code: str) -> str:
    """80 random bits need no slow hash."""
    return hashlib.sha256(f"{user.pk}:{code}".encode()).hexdigest()

"""What belongs to accounts beside Django's users: second factors and identities of an OpenID provider."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django_otp.models import Device, ThrottlingMixin


class SecondFactor(ThrottlingMixin, Device):  # type: ignore[misc]
    """An app that shows codes (TOTP, RFC 6238). Throttled: each wrong code doubles the wait until the next try."""

    sealed_key = models.TextField()
    """Its secret, sealed with Django's key (access.sealing): a copy of the database makes no codes."""
    last_step = models.BigIntegerField(default=-1)
    """The time step of the newest accepted code: none of it or before is accepted again."""
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user"], name="one_second_factor_per_user")]

    def get_throttle_factor(self) -> float:
        """Seconds to wait after the first wrong code."""
        return 1


class RecoveryCode(models.Model):
    """Stands in for the second factor once. The code itself is shown once; the row has its digest."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.CharField(max_length=64)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "digest"], name="recovery_code_once_per_user")]


class Identity(models.Model):
    """Whom an OpenID provider calls `subject` is this user here. Names are never enough: they may be somebody else's."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_of_one_user")]

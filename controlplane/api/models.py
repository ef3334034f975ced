"""Rows that belong to the API alone."""

from __future__ import annotations

from django.db import models
from knox.models import AbstractAuthToken

from controlplane.access.scopes import all_scopes


class StoredAnswer(models.Model):
    """The answer to a change that carried an `Idempotency-Key`: written in the change's own transaction, so that there is
    either both or neither, and given again to whoever sends the same request with the same key."""

    actor = models.CharField(max_length=150)
    key = models.CharField(max_length=255)
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=1024)
    digest = models.CharField(max_length=64)
    """SHA-256 of query and body."""
    status = models.PositiveSmallIntegerField(default=0)
    location = models.CharField(max_length=255, blank=True)
    body = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["created_at"])]
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="one_answer_per_actor_and_key")]


class ApiToken(AbstractAuthToken):  # type: ignore[misc]
    """What signs a program in as a user. The token itself is shown once; the row has its digest."""

    name = models.CharField(max_length=63)
    scopes = models.JSONField(default=all_scopes)
    """What it may be used for at most, of what its user may (access.scopes)."""
    used_at = models.DateTimeField(null=True, blank=True)
    """Its last use, to some minutes."""

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="token_name_per_user")]

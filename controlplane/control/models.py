"""Rows that belong to control alone: leases, seals of the audit, and the whole state as it was applied last."""

from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """Who may do a piece of work now. Claimed by conditional update on the database's clock (control.leases)."""

    name = models.CharField(max_length=32, primary_key=True)
    holder = models.CharField(max_length=64, blank=True)
    until = models.DateTimeField()


class AuditSeal(models.Model):
    """A seal over a batch of audit entries (core.auditchain). Append-only, as they are."""

    number = models.PositiveBigIntegerField(primary_key=True)
    """From 1, without a gap."""
    first = models.PositiveBigIntegerField()
    last = models.PositiveBigIntegerField(unique=True)
    """Ids of entries, both sealed. None between them may come later."""
    previous = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, unique=True)
    rows = models.JSONField()
    """[id, digest] of each entry."""
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["number"]


class AuditBudget(models.Model):
    """How many entries of one kind and source were made in one span of time, and how many were left out: what strangers can
    cause must not fill the disk (control.auditing.notes)."""

    kind = models.CharField(max_length=32)
    source = models.SmallIntegerField()
    """A bucket of sources; -1: all of the kind, by day."""
    span = models.PositiveBigIntegerField()
    """Hours, or days, since 1970."""
    kept = models.PositiveIntegerField(default=0)
    left_out = models.PositiveIntegerField(default=0)
    """Not told yet."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "source"], name="one_budget_per_kind_and_source")]


class AppliedState(models.Model):
    """One row (id 1): the whole state as somebody applied it last. What differs from it by now was changed by hand."""

    document = models.JSONField(default=dict)
    actor = models.CharField(max_length=150, blank=True)
    at = models.DateTimeField(auto_now=True)

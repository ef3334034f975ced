"""Rows that belong to the control loop alone."""

from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """Who may do a piece of work now. Claimed by conditional update on the database's clock (control.leases)."""

    name = models.CharField(max_length=32, primary_key=True)
    holder = models.CharField(max_length=64, blank=True)
    until = models.DateTimeField()

"""Leases: rows claimed by conditional update on the database's clock, so that hosts' clocks do not matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db.models import Q
from django.db.models.functions import Now

from controlplane.control.models import Lease


@contextmanager
def lease(name: str, holder: str, seconds: float) -> Iterator[bool]:
    """True inside the block if the lease `name` is ours; it is given back at the end, and by itself after `seconds` if we
    are killed."""
    Lease.objects.bulk_create([Lease(name=name, until=Now())], ignore_conflicts=True)
    mine = _claim(name, holder, seconds)
    try:
        yield mine
    finally:
        if mine:
            Lease.objects.filter(name=name, holder=holder).update(holder="", until=Now())


def _claim(name: str, holder: str, seconds: float) -> bool:
    free = Lease.objects.filter(Q(holder="") | Q(until__lt=Now()), name=name)
    return free.update(holder=holder, until=Now() + timedelta(seconds=seconds)) == 1

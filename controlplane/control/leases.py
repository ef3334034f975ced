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
    mine = _claim(name, holder, seconds)
    try:
        yield mine
    finally:
        if mine:
            Lease.objects.filter(name=name, holder=holder).update(holder="", until=Now())


def hold(name: str, holder: str, seconds: float) -> bool:
    """Whether the lease `name` is ours for `seconds` from now on: claimed if it was free, renewed if it was ours."""
    ours = Lease.objects.filter(name=name, holder=holder)
    return ours.update(until=Now() + timedelta(seconds=seconds)) == 1 or _claim(name, holder, seconds)


def _claim(name: str, holder: str, seconds: float) -> bool:
    free = Lease.objects.filter(Q(holder="") | Q(until__lt=Now()), name=name)
    ours = {"holder": holder, "until": Now() + timedelta(seconds=seconds)}
    if free.update(**ours):
        return True
    if Lease.objects.filter(name=name).exists():
        return False
    Lease.objects.bulk_create([Lease(name=name, until=Now())], ignore_conflicts=True)  # nobody has asked for it before
    return bool(free.update(**ours))

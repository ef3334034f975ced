"""How many requests a user may send in a minute, and how many strangers from one address, counted by each web process for
itself: nothing else must live for it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

from django.conf import settings
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from controlplane.core import ratelimit

MAX_USERS = 10_000
"""Windows kept; the one that was not used for longest goes first."""

_windows: OrderedDict[tuple[Any, str], list[int]] = OrderedDict()
_lock = threading.Lock()


class PerUser(BaseThrottle):
    """Reads and changes have limits of their own."""

    def __init__(self) -> None:
        self._wait_s = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:
        changes = request.method not in SAFE_METHODS
        limit = settings.API_CHANGES_PER_MINUTE if changes else settings.API_READS_PER_MINUTE
        self._wait_s = _wait_s((request.user.pk, "changes" if changes else "reads"), limit)
        return not self._wait_s

    def wait(self) -> float:
        return self._wait_s


def stranger_wait_s(address: str) -> float:
    """Counts a request that nothing signs in; in how many seconds the next one is answered as such again, 0: this one is."""
    return _wait_s((address, "strangers"), settings.API_STRANGERS_PER_MINUTE)


def _wait_s(key: tuple[Any, str], limit: int) -> float:
    """Counts a request, or says in how many seconds it may come again."""
    now_s = int(time.monotonic())
    with _lock:
        cells = _windows.setdefault(key, [now_s] + [0] * (ratelimit.CELLS - 1))
        _windows.move_to_end(key)
        while len(_windows) > MAX_USERS:
            _windows.popitem(last=False)
        ratelimit.advance(cells, now_s)
        if not ratelimit.decide((limit, None), ratelimit.used(cells, now_s), 0):
            ratelimit.add(cells, now_s, 1, 0)
            return 0.0
        return max(1.0, ratelimit.refusal("requests", limit, 0, [cells], now_s).wait_s)

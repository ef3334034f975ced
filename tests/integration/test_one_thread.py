"""Which thread answers a request of the web process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.signals import request_finished, request_started

from controlplane.handler import OneThread


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Of the begin and the end of each request."""
    seen: list[int] = []

    def note(**_: Any) -> None:
        seen.append(threading.get_ident())

    request_started.connect(note)
    request_finished.connect(note)
    yield seen
    request_started.disconnect(note)
    request_finished.disconnect(note)


async def test_a_request_is_answered_by_one_thread_from_begin_to_end_beside_the_event_loop(threads: list[int]) -> None:
    handler = OneThread()
    assert [await _status(handler, "/healthz") for _ in range(3)] == [200, 200, 200]
    assert len(threads) == 6
    assert threads[::2] == threads[1::2]
    assert threading.get_ident() not in threads


async def test_an_address_that_is_nowhere_is_answered_too(threads: list[int]) -> None:
    assert await _status(OneThread(), "/api/v1/nothing-here") == 404
    assert len(threads) == 2


async def _status(handler: OneThread, path: str) -> int:
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}
    communicator: Any = ApplicationCommunicator  # it has no types
    asking = communicator(handler, scope)
    await asking.send_input({"type": "http.request", "body": b""})
    begun = await asking.receive_output(timeout=120)
    while (await asking.receive_output(timeout=120)).get("more_body"):
        pass
    await asking.wait(timeout=120)
    return int(begun["status"])

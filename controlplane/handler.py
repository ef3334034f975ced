"""How a request of the web process is answered: by one thread, from its first middleware to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from controlplane.api.watch import MAX_WAITING

MAX_THREADS = MAX_WAITING + 100
"""A long poll keeps its thread while it waits; so many others are answered beside all that may wait. Begun as needed."""


class OneThread(ASGIHandler):
    """Django's own handler begins a thread for each request and changes five times between it and the event loop. On a
    busy machine each change waits for a processor again, and the requests of a burst wait for each other. Here threads stay
    and a request changes once; what streams is sent by the event loop, as Django does."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="request")

    async def handle(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """Ends early when the client has gone: a view that waits is cancelled, any other comes to its end unheard."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        gone = asyncio.create_task(self.listen_for_disconnect(receive))
        answering = asyncio.create_task(self._answer(scope, body, send))
        try:
            await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answering.cancel()
            _, ended = await asyncio.gather(gone, answering, return_exceptions=True)
            body.close()
        if isinstance(ended, Exception):
            raise ended

    async def _answer(self, scope: Any, body: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        response: Any = await self._in_thread(self._respond, scope, body)
        try:
            await self.send_response(response, send)
        finally:
            if response.streaming:
                await asyncio.shield(self._in_thread(_close, response))

    def _respond(self, scope: Any, body: Any) -> Any:
        """In a thread of ours, which is free for the next request after it."""
        try:
            set_script_prefix(get_script_prefix(scope))
            signals.request_started.send(sender=self.__class__, scope=scope)
            request, refusal = self.create_request(scope, body)
            response: Any = refusal if request is None else self.get_response(request)
            response._handler_class = self.__class__
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            if not response.streaming:
                response.close()  # its content stays
            return response
        finally:
            give_back_connections()

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await sync_to_async(work, thread_sensitive=False, executor=self._threads)(*arguments)


def _close(response: HttpResponseBase) -> None:
    try:
        response.close()
    finally:
        give_back_connections()


def give_back_connections() -> None:
    """To where they are shared. One with an open transaction belongs to somebody else, as Django's handler takes it too."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()

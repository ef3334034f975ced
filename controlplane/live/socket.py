"""The ASGI application behind /ws/live: one object per socket, which only forwards what the hub has.

Close codes: 4401 log in (again), 4400 too many bad messages, 4429 messages too fast, 4408 the client does not read (it is
cut off: only we know the code), 4409 it asks for nothing, 4404 no such socket. A client reconnects after any other code and
subscribes again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from channels.db import database_sync_to_async
from django.db import Error as DatabaseError

from controlplane.access import sessions
from controlplane.access.who import actor_once
from controlplane.control.actor import Actor, may_follow
from controlplane.live import frames
from controlplane.live.counts import counts
from controlplane.live.hub import Hub, hub
from controlplane.live.messages import MAX_BYTES, BadMessage, subscription
from controlplane.live.reader import Reader
from controlplane.telemetry.topics import ALWAYS

log = logging.getLogger(__name__)

Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

LOG_IN, BAD, TOO_FAST, NOT_READING, IDLE, NOT_HERE = 4401, 4400, 4429, 4408, 4409, 4404
MAX_BAD = 5
MESSAGES, PER_S = 20, 10.0
"""At most so many messages in so many seconds."""
SEND_WITHIN_S = 20.0
CHECK_LOGIN_EVERY_S = 60.0
ASK_WITHIN_S = 30.0
"""A socket that has not asked for a topic by then is closed."""


async def live(scope: Event, receive: Receive, send: Send) -> None:
    """/ws/live. The scope must carry a user and a session (AuthMiddlewareStack)."""
    if (await receive())["type"] != "websocket.connect":
        return
    await send({"type": "websocket.accept"})
    session_key = scope["session"].session_key
    actor = await database_sync_to_async(actor_of)(session_key) if scope["user"].is_authenticated else None
    if actor is None:
        await send({"type": "websocket.close", "code": LOG_IN, "reason": "log in first"})
        return
    await Socket(hub(), session_key, actor, receive, send).run()


async def nowhere(scope: Event, receive: Receive, send: Send) -> None:
    """Any other socket address."""
    await receive()
    await send({"type": "websocket.close", "code": NOT_HERE, "reason": "no such socket"})


class Closed(Exception):
    """The socket is to be closed by us; None: the client has gone."""

    def __init__(self, code: int | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Socket:
    def __init__(self, hub: Hub, session_key: str, actor: Actor, receive: Receive, send: Send) -> None:
        self._hub = hub
        self._session_key = session_key
        self._actor = actor
        self._receive = receive
        self._send = send
        self._reader = Reader()
        self._asked = False
        self._bad = 0
        self._times: deque[float] = deque(maxlen=MESSAGES)

    async def run(self) -> None:
        """Until one of the three has a reason to end it."""
        tasks = [asyncio.create_task(work) for work in (self._hear(), self._speak(), self._stay_allowed())]
        counts.open += 1
        end = "error"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Closed as closed:
            end = str(closed.code or "client")
            if closed.code is not None:
                await self._close(closed)
        finally:
            counts.open -= 1
            counts.closed[end] += 1
            self._hub.leave(self._reader)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self) -> None:
        while True:
            try:
                event = await asyncio.wait_for(self._receive(), None if self._asked else ASK_WITHIN_S)
            except TimeoutError as error:
                raise Closed(IDLE, "it asks for nothing") from error
            if event["type"] == "websocket.disconnect":
                raise Closed
            now = time.monotonic()
            if len(self._times) == MESSAGES and now - self._times[0] < PER_S:
                raise Closed(TOO_FAST, "messages come too fast")
            self._times.append(now)
            counts.messages += 1
            await self._obey(event)

    async def _obey(self, event: Event) -> None:
        text = event.get("text")
        try:
            if text is None or len(text) > MAX_BYTES:
                raise BadMessage("bad_message", f"a message must be text of at most {MAX_BYTES} characters")
            topics = subscription(text)
        except BadMessage as error:
            self._bad += 1
            about = {"topic": error.topic} if error.topic else {}
            await self._send_text(frames.error(error.code, str(error), **about))
            if self._bad >= MAX_BAD:
                raise Closed(BAD, "too many bad messages") from error
        else:
            self._asked = True
            self._hub.follow(self._reader, [topic for topic in topics if may_follow(self._actor, topic)])
            for topic in topics:
                if topic not in self._reader.topics:
                    await self._refuse(topic)

    async def _refuse(self, topic: str) -> None:
        await self._send_text(frames.error("forbidden", "your role may not follow this topic", topic=topic))

    async def _speak(self) -> None:
        """Send what is due. Between two sends only the newest frame of a topic counts."""
        wake = self._reader.wake
        while True:
            wait_s = await self._send_due()
            try:
                await asyncio.wait_for(wake.wait(), wait_s)
            except TimeoutError:
                continue
            wake.clear()

    async def _send_due(self) -> float | None:
        """Seconds until a frame that is here already may be sent; None: nothing waits."""
        wait_s: float | None = None
        for name, follow in list(self._reader.topics.items()):
            topic = self._hub.topic(name)
            if topic is None or self._reader.topics.get(name) is not follow:
                continue
            if topic.absent and follow.sent is None and name not in ALWAYS:
                self._hub.drop(self._reader, name)
                await self._send_text(frames.error("unknown_topic", "there is no such topic now", topic=name))
            elif topic.frame is not None and topic.frame.stamp != follow.sent:
                now = time.monotonic()
                if now < follow.due_at:
                    wait_s = min(wait_s or follow.due_at - now, follow.due_at - now)
                    continue
                text = topic.frame.after(follow.sent)
                follow.note_sent(topic.frame.stamp, now)
                await self._send_text(text)
        return wait_s

    async def _send_text(self, text: str) -> None:
        try:
            await asyncio.wait_for(self._send({"type": "websocket.send", "text": text}), SEND_WITHIN_S)
            counts.frames += 1
            counts.frame_bytes += len(text)
        except TimeoutError as error:
            raise Closed(NOT_READING, "the client does not read") from error

    async def _close(self, closed: Closed) -> None:
        try:
            event = {"type": "websocket.close", "code": closed.code, "reason": closed.reason}
            await asyncio.wait_for(self._send(event), SEND_WITHIN_S)
        except (TimeoutError, RuntimeError, OSError):
            log.info("a live socket could not be closed in order: %s", closed.reason)

    async def _stay_allowed(self) -> None:
        """A log-out, a changed password or a deactivated user ends the socket within a minute, a lost role its topics."""
        while True:
            await asyncio.sleep(CHECK_LOGIN_EVERY_S)
            try:
                actor = await database_sync_to_async(actor_of)(self._session_key)
            except DatabaseError:  # while PostgreSQL is away nobody is thrown out
                continue
            if actor is None:
                raise Closed(LOG_IN, "log in again")
            self._actor = actor
            for topic in [topic for topic in self._reader.topics if not may_follow(actor, topic)]:
                self._hub.drop(self._reader, topic)
                await self._refuse(topic)


def actor_of(session_key: str) -> Actor | None:
    """Who is signed in with a session, asked anew of the session store; None: nobody. Raises django.db.Error."""
    user = sessions.user_of(sessions.stored(session_key))
    return actor_once(user) if user.is_authenticated else None

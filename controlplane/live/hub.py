"""One per web process: reads each followed topic once when it changed, and wakes its readers. Sockets never touch Valkey.

An announcement on the channel layer says "topic, seq"; because it may be lost, topics are also read when nothing was heard
for POLL_S. While Valkey is away readers keep what they have, and the pages say how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from redis.asyncio import Redis

from controlplane.core import names
from controlplane.live.frames import BadState, Frame, read
from controlplane.live.reader import Follow, Reader
from controlplane.telemetry.topics import group

log = logging.getLogger(__name__)

POLL_S = 2.0
TICK_S = 0.5
UNREACHABLE = (redis.RedisError, OSError)


@dataclass
class Topic:
    readers: set[Reader] = field(default_factory=set)
    frame: Frame | None = None
    absent: bool = False
    """It was looked for and Valkey has nothing of it."""
    read_at: float = 0.0


class Hub:
    def __init__(self) -> None:
        self._valkey = Redis.from_url(settings.VALKEY_URL, socket_timeout=5.0, socket_connect_timeout=5.0)
        self._layer = get_channel_layer()
        self._channel: str | None = None
        self._joined: set[str] = set()
        self._topics: dict[str, Topic] = {}
        self._dirty: set[str] = set()
        self._changed = asyncio.Event()
        self._failing = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(for_ever(work)) for work in (self._listen, self._poll, self._read_changed)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._valkey.aclose()

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def follow(self, reader: Reader, topics: list[str]) -> None:
        """From now on `reader` follows exactly these topics, and is owed a snapshot of each."""
        for name in reader.topics.keys() - set(topics):
            self.drop(reader, name)
        for name in topics:
            due_at = reader.topics[name].due_at if name in reader.topics else 0.0
            reader.topics[name] = Follow(due_at=due_at)
            topic = self._topics.setdefault(name, Topic())
            topic.readers.add(reader)
            if topic.frame is None or topic.absent:
                topic.absent = False
                self._mark(name)
        reader.wake.set()

    def drop(self, reader: Reader, name: str) -> None:
        reader.topics.pop(name, None)
        topic = self._topics.get(name)
        if topic is not None:
            topic.readers.discard(reader)
            if not topic.readers:
                del self._topics[name]

    def leave(self, reader: Reader) -> None:
        for name in list(reader.topics):
            self.drop(reader, name)

    def _mark(self, name: str) -> None:
        self._dirty.add(name)
        self._changed.set()

    async def _listen(self) -> None:
        """Announcements of all groups come in on one channel of this process."""
        while True:
            try:
                if self._channel is None:
                    self._joined.clear()
                    self._channel = await self._layer.new_channel()
                message = await self._layer.receive(self._channel)
            except UNREACHABLE:
                self._channel = None
                await asyncio.sleep(TICK_S)
                continue
            if message.get("topic") in self._topics:
                self._mark(message["topic"])

    async def _poll(self) -> None:
        """Join and leave groups as topics come and go, and read what was not announced for long."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for name, topic in self._topics.items():
                if now - topic.read_at >= POLL_S:
                    self._mark(name)
            try:
                await self._join_groups()
            except UNREACHABLE:
                self._joined.clear()

    async def _join_groups(self) -> None:
        if self._channel is None:
            return
        for name in self._topics.keys() - self._joined:
            await self._layer.group_add(group(name), self._channel)
            self._joined.add(name)
        for name in self._joined - self._topics.keys():
            await self._layer.group_discard(group(name), self._channel)
            self._joined.discard(name)

    async def _read_changed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._dirty:
                name = self._dirty.pop()
                topic = self._topics.get(name)
                if topic is not None:
                    await self._read(name, topic)

    async def _read(self, name: str, topic: Topic) -> None:
        topic.read_at = time.monotonic()
        try:
            state = read(name, await self._valkey.hmget(names.live_key(name), ["epoch", "seq", "at", "rows"]))
        except (*UNREACHABLE, BadState) as error:
            if not self._failing:
                log.warning("live rows cannot be read, trying on: %s", type(error).__name__)
            self._failing = True
            return
        self._failing = False
        topic.absent = state is None
        before = topic.frame
        if state is not None and (before is None or before.stamp != (state.epoch, state.seq)):
            topic.frame = Frame(state, before.state if before else None)
        for reader in topic.readers:
            reader.wake.set()


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Start `work` again whenever it ends by an error nobody foresaw: every page of this process hangs on it. The same error
    is said once."""
    said = ""
    while True:
        try:
            await work()
        except Exception as error:
            if repr(error) != said:
                log.exception("live rows: an unforeseen error, going on")
            said = repr(error)
            await asyncio.sleep(TICK_S)


class Brief(logging.Filter):
    """The channel layer logs a traceback every second while Valkey is away: one line a minute says as much."""

    EVERY_S = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._told_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, UNREACHABLE):
            return True
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < self.EVERY_S:
            return False
        self._told_at = now
        record.msg, record.args = "announcements cannot be heard, trying on: %s", (type(error).__name__,)
        record.exc_info = record.exc_text = None
        return True


_brief = Brief()
_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of this process (of the running event loop), started with its first reader."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        logging.getLogger("channels_redis.pubsub").addFilter(_brief)
        found = _hubs[loop] = Hub()
        found.start()
    return found
